"""Batches built from stored samples: restored, augmented, cropped, images last.

Knows: a store's transform, the variant of a sample in an epoch. Does not know: the order of samples, the
caller, the augmentation itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.data.loading.order import Rows
from cotswold.data.preprocessing.whitening import Float32
from cotswold.data.store.store import Store
from cotswold.geometry import Box

Batch = tuple[torch.Tensor, torch.Tensor]
"""Samples, float32 (image, channel, y, x) with the image axis contiguous ("images last"), and labels, int64
(image,), or regression targets, float32 (image, target).
"""
Keys = NDArray[np.uint64]
_ROW_BYTES = 16
"""Bytes of a sample's row number and label."""


class Augment(Protocol):
    """An augmentation: makes variants of samples."""

    def __call__(self, values: Float32, keys: Keys) -> Float32:
        """Return one variant of each sample (image, channel, y, x), determined by its values and its key."""

    def state(self) -> list[dict[str, object]]:
        """Return plain values that identify the augmentation."""


@dataclass(frozen=True)
class BatchRows:
    """A requested batch: samples of an epoch by their rows in the split, in this order."""

    epoch: int
    rows: Rows
    """(image,), or (batch, image) for several batches of equal size."""


def coalesce(
    wanted: Iterable[BatchRows], sample_bytes: int, most_bytes: int, most: int
) -> Iterator[BatchRows]:
    """Yield the batches in order, merging consecutive ones of the same epoch and size.

    A merged request has at most ``most`` batches and ``most_bytes`` bytes, unless a single batch is larger.
    """
    held: list[BatchRows] = []
    for each in wanted:
        if held:
            first, count = held[0], len(each.rows)
            is_full = len(held) >= min(most, most_bytes // max(1, (sample_bytes + _ROW_BYTES) * count))
            if is_full or (each.epoch, count) != (first.epoch, len(first.rows)):
                yield _coalesce(held)
                held = []
        held.append(each)
    if held:
        yield _coalesce(held)


def _coalesce(wanted: Sequence[BatchRows]) -> BatchRows:
    return BatchRows(wanted[0].epoch, np.stack([each.rows for each in wanted]))


def keys(seed: int, epoch: int | Rows, rows: Rows) -> Keys:
    """Return the keys of the variants: a different number for each seed, epoch and row.

    Args:
        seed: Seed of the augmentation.
        epoch: Epoch of all samples, or one epoch per sample (image,).
        rows: Rows of the samples in the split, (image,).

    Returns:
        uint64 (image,). From the seed, the finaliser of SplitMix64 is applied twice: for the epoch and the
        row.

    Source:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    found = np.full(len(rows), seed & (1 << 64) - 1, np.uint64)
    with np.errstate(over="ignore"):
        for each in (np.asarray(epoch, np.uint64), rows.astype(np.uint64)):
            found = _mix(found + np.uint64(0x9E3779B97F4A7C15) * (each + np.uint64(1)))
    return found


@dataclass(frozen=True)
class BatchBuilder:
    """Builds batches of one split of a store.

    A sample is augmented whole and then cropped, so all windows see the same variant.

    Args:
        store: The store.
        split: Name of the split.
        box: A window (y, x) of the plane; None for whole samples.
        augmentation: The augmentation; None leaves samples unchanged.
        seed: Seed of the augmentation.
    """

    store: Store
    split: str
    box: Box | None = None
    augmentation: Augment | None = None
    seed: int = 0
    labels: NDArray[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", self.store.labels(self.split))

    @property
    def read_box(self) -> Box | None:
        """The window that must be read; None for whole samples."""
        return self.box if self.augmentation is None else None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the needed part of stored rows: (image, channel, y, x).

        Args:
            start: First row.
            stop: End of the rows, exclusive.

        Raises:
            StoreError: if a chunk is damaged.
        """
        return self.store.read_stored(self.split, start, stop, self.read_box)

    def batch(self, wanted: BatchRows, stored: NDArray[Any]) -> Batch:
        """Build one batch.

        Args:
            wanted: The epoch and the rows (image,).
            stored: These rows as `read` returns them, (image, channel, y, x).

        Returns:
            Samples, float32 (image, channel, y, x), images last, and labels (image,).
        """
        samples, labels = self.batches(BatchRows(wanted.epoch, wanted.rows[None]), stored)
        return samples[0], labels[0]

    def batches(self, wanted: BatchRows, stored: NDArray[Any], out: memoryview | None = None) -> Batch:
        """Build several batches of equal size.

        Args:
            wanted: The epoch and the rows (batch, image).
            stored: These rows as `read` returns them, batch by batch: (row, channel, y, x).
            out: Memory for the samples, which is used from its start if it is large enough. [new memory]

        Returns:
            Samples, float32 (batch, image, channel, y, x), each batch images last and contiguous with the
            next one, and labels (batch, image).
        """
        last = torch.from_numpy(self._last(wanted, stored, out))
        return last.permute(0, 4, 3, 1, 2), torch.from_numpy(self.labels[wanted.rows])

    def _last(self, wanted: BatchRows, stored: NDArray[Any], out: memoryview | None) -> Float32:
        """Return float32 (batch, y, x, channel, image)."""
        restored, each = self.store.transform.restored, wanted.rows.shape
        if self.augmentation is not None:
            values = self.augmentation(
                restored(stored), keys(self.seed, wanted.epoch, wanted.rows.reshape(-1))
            )
            if self.box is not None:
                values = values[:, :, *self.box.slices]
            return _contiguous(values.reshape(*each, *values.shape[1:]).transpose(0, 3, 4, 2, 1), out)
        last = np.ascontiguousarray(stored.reshape(*each, math.prod(stored.shape[1:])).swapaxes(1, 2))
        values = restored(last).reshape(each[0], *stored.shape[1:], each[1])
        return _contiguous(values.transpose(0, 2, 3, 1, 4), out)


def _contiguous(values: Float32, out: memoryview | None) -> Float32:
    """Return contiguous values, in ``out`` if it is large enough."""
    if out is None or out.nbytes < values.nbytes or not values.size:
        return np.ascontiguousarray(values)
    found = np.frombuffer(out, np.float32, values.size).reshape(values.shape)
    np.copyto(found, values)
    return found


def _mix(state: Keys) -> Keys:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = state ^ (state >> np.uint64(31))
    return mixed
