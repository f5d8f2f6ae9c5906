"""Indexed samples: samples and targets by index, in any order.

Knows: stores, data sets of a program, files of rows shared by the workers of a host. Does not know: networks,
portions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from cotswold.data import Store
from cotswold.data.loading.batching import Augment, keys
from cotswold.errors import MachineError, UserError
from cotswold.files import disk_errors, replace_file
from cotswold.host import require_memory
from cotswold.ops import images_last
from cotswold.training.data.batches import batch_of
from cotswold.training.data.user_datasets import Samples
from cotswold.training.strategies.base import Batch

_CPU = torch.device("cpu")


class IndexedSamples(Protocol):
    """Samples and targets by index, from 0."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    @property
    def is_augmented(self) -> bool:
        """True if samples are augmented differently in each epoch.

        Index e · n + i is then sample i of n as epoch e sees it. Otherwise indices are below n.
        """
        ...

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return the samples with these indices, in this order; the same each time."""
        ...


class StoreSamples:
    """A split of a store, with its stored rows in memory or in a shared file."""

    def __init__(
        self,
        store: Store,
        split: str,
        rows: Path | None = None,
        *,
        augmentation: Augment | None = None,
        seed: int = 0,
    ) -> None:
        """``augmentation`` changes the samples, with random numbers from ``seed``.

        Raises MemoryLimitError if the rows do not fit in memory and no file is given.
        """
        self._augmentation, self._seed = augmentation, seed
        self._restored = store.transform.restored
        self._labels = store.learnable(torch.from_numpy(store.labels(split)))
        count = len(self._labels)
        if rows is not None:
            kept = np.dtype(store.transform.preparation.dtype)
            shape = store.shape
            where = _rows_file(rows, split)
            self._rows: NDArray[Any] = np.memmap(
                where, kept, "r", shape=(count, shape.channels, shape.height, shape.width)
            )
            return
        require_memory(
            _bytes(store, split),
            f"keeping the {count:,} {split} samples of {store.path} in memory",
            "use several workers, which share a file of the samples (cluster.workers), or a larger machine",
        )
        step = store.shard(split)
        parts = [store.read_stored(split, start, min(start + step, count)) for start in range(0, count, step)]
        self._rows = parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def is_augmented(self) -> bool:
        """True if samples are augmented."""
        return self._augmentation is not None

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return samples, images last, and labels."""
        epochs, chosen = np.divmod(np.asarray(numbers, np.int64), len(self._labels))
        samples = self._restored(self._rows[chosen])
        if self._augmentation is not None:
            samples = self._augmentation(samples, keys(self._seed, epochs, chosen))
        return Batch(images_last(torch.from_numpy(samples)), self._labels[torch.from_numpy(chosen)])


class DatasetSamples:
    """A user's map-style data set, which gives the same samples each time."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._tensors = _tensors(samples.dataset) if samples.collate is default_collate else None

    is_augmented = False

    def __len__(self) -> int:
        return len(self._samples)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return the data set's samples; raises UserError unless they are pairs of tensors."""
        if self._tensors is not None:  # one sample at a time would take longer than a small network
            chosen = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            inputs, targets = (each[chosen] for each in self._tensors)
            return Batch(inputs, targets, self._samples.numbers(numbers))
        batch = batch_of(self._samples.items(numbers), _CPU)
        if batch.weights is not None:
            raise UserError(
                "the data set gives (input, target, weight), but only strategy supervised supports "
                "weights; give pairs (input, target), or use strategy supervised"
            )
        return replace(batch, numbers=self._samples.numbers(numbers))


class DeviceSamples:
    """Indexed samples whose batches are copied to a device."""

    def __init__(self, samples: IndexedSamples, device: torch.device) -> None:
        self._samples, self._device = samples, device

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def is_augmented(self) -> bool:
        """True if the underlying samples are augmented."""
        return self._samples.is_augmented

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Return the batch on the device."""
        return self._samples.batch(numbers).to(self._device)


def _tensors(dataset: Dataset[Any]) -> tuple[Tensor, Tensor] | None:
    """Return inputs and targets of a data set of exactly two tensors, or of a subset of one."""
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if type(dataset) is Subset:
        whole = _tensors(dataset.dataset)
        if whole is not None:
            chosen = torch.as_tensor(dataset.indices)
            return whole[0][chosen], whole[1][chosen]
    return None


def write_rows(store: Store, split: str, folder: Path) -> None:
    """Write the rows of a split to a file, once; the workers of a host share it through the page cache."""
    path, note = _rows_file(folder, split), folder / f"{split}.json"
    wanted = json.dumps({"store": store.identity, "bytes": _bytes(store, split)}).encode()
    if note.is_file() and note.read_bytes() == wanted and path.stat().st_size == _bytes(store, split):
        return
    with disk_errors(path, MachineError):
        folder.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
        step = store.shard(split)
        count = store.splits[split]
        with path.open("wb") as file:
            for start in range(0, count, step):
                file.write(store.read_stored(split, start, min(start + step, count)).tobytes())
        replace_file(note, wanted)


def _rows_file(folder: Path, split: str) -> Path:
    return folder / f"{split}.rows"


def _bytes(store: Store, split: str) -> int:
    return store.splits[split] * store.shape.size * np.dtype(store.transform.preparation.dtype).itemsize
