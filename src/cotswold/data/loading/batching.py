"""Batches made of samples as a store keeps them: restored, varied, cut, images last.

Knows: a store's transform, which variant an epoch sees of a sample. Does not know: the order of samples, who
asks for them, how pictures are varied.
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
"""Samples, float32 (image, channel, y, x) with the image contiguous ("images last"), and labels, int64
(image,), or regression targets, float32 (image, target)."""
Keys = NDArray[np.uint64]
_ROW_BYTES = 16
"""Of a sample's row and label."""


class Varying(Protocol):
    """What makes variants of samples."""

    def __call__(self, values: Float32, keys: Keys) -> Float32:
        """A variant of each of some samples (image, channel, y, x), by its values and its key alone."""

    def state(self) -> list[dict[str, object]]:
        """Plain values that tell it apart from others."""


@dataclass(frozen=True)
class Wanted:
    """A batch that somebody wants: samples of an epoch by their rows in the split, in this order."""

    epoch: int
    rows: Rows
    """(image,); or, for several batches of as many samples, (batch, image)."""


def together(wanted: Iterable[Wanted], sample_bytes: int, most_bytes: int, most: int) -> Iterator[Wanted]:
    """The same batches, in order; neighbours of one epoch and as many samples together, up to so many batches
    or so many bytes, where one has not more."""
    held: list[Wanted] = []
    for each in wanted:
        if held:
            first, count = held[0], len(each.rows)
            is_full = len(held) >= min(most, most_bytes // max(1, (sample_bytes + _ROW_BYTES) * count))
            if is_full or (each.epoch, count) != (first.epoch, len(first.rows)):
                yield _joined(held)
                held = []
        held.append(each)
    if held:
        yield _joined(held)


def _joined(wanted: Sequence[Wanted]) -> Wanted:
    return Wanted(wanted[0].epoch, np.stack([each.rows for each in wanted]))


def keys(seed: int, epoch: int | Rows, rows: Rows) -> Keys:
    """What tells the variants of samples apart: another number for each seed, epoch (of all, or of each
    of them) and row.

    From the seed, the finaliser of SplitMix64 (Steele, Lea, Flood 2014) twice: for the epoch and the row.
    """
    found = np.full(len(rows), seed & (1 << 64) - 1, np.uint64)
    with np.errstate(over="ignore"):
        for each in (np.asarray(epoch, np.uint64), rows.astype(np.uint64)):
            found = _mixed(found + np.uint64(0x9E3779B97F4A7C15) * (each + np.uint64(1)))
    return found


@dataclass(frozen=True)
class Maker:
    """Makes batches of one split of a store.

    ``box``: a window (y, x) of the plane; a sample is varied whole and then cut, so that all windows see the
    same variant. ``varying``: what makes variants, of ``seed``; None for samples as they are.
    """

    store: Store
    split: str
    box: Box | None = None
    varying: Varying | None = None
    seed: int = 0
    labels: NDArray[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", self.store.labels(self.split))

    @property
    def read_box(self) -> Box | None:
        """The window that must be read."""
        return self.box if self.varying is None else None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows as they are stored, what of them is needed: (image, channel, y, x)."""
        return self.store.read_stored(self.split, start, stop, self.read_box)

    def batch(self, wanted: Wanted, stored: NDArray[Any]) -> Batch:
        """The batch, of its rows as `read` gives them."""
        samples, labels = self.batches(Wanted(wanted.epoch, wanted.rows[None]), stored)
        return samples[0], labels[0]

    def batches(self, wanted: Wanted, stored: NDArray[Any]) -> Batch:
        """Several batches, of their rows as `read` gives them, one batch after the other: samples (batch,
        image, channel, y, x), each batch images last and beside the next one, and labels (batch, image)."""
        last = torch.from_numpy(self._last(wanted, stored))
        return last.permute(0, 4, 3, 1, 2), torch.from_numpy(self.labels[wanted.rows])

    def _last(self, wanted: Wanted, stored: NDArray[Any]) -> Float32:
        """Float32 (batch, y, x, channel, image)."""
        restored, each = self.store.transform.restored, wanted.rows.shape
        if self.varying is not None:
            values = self.varying(restored(stored), keys(self.seed, wanted.epoch, wanted.rows.reshape(-1)))
            if self.box is not None:
                values = values[:, :, *self.box.slices]
            return np.ascontiguousarray(values.reshape(*each, *values.shape[1:]).transpose(0, 3, 4, 2, 1))
        last = np.ascontiguousarray(stored.reshape(*each, math.prod(stored.shape[1:])).swapaxes(1, 2))
        values = restored(last).reshape(each[0], *stored.shape[1:], each[1])
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1, 4))


def _mixed(state: Keys) -> Keys:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = state ^ (state >> np.uint64(31))
    return mixed
