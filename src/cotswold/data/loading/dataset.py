"""A split of a store as a PyTorch dataset, for any training loop.

Knows: a store, an order, DataLoader workers, ranks. Does not know: the use of the samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from cotswold.data.augment import Augmentation
from cotswold.data.loading.batching import keys
from cotswold.data.loading.order import Buffered, Rows, Split, part_of_rank, part_of_worker
from cotswold.data.loading.reader import shuffle_bytes, stored_bytes
from cotswold.data.loading.shuffle_buffer import Buffer, Epoch
from cotswold.data.store.store import Store
from cotswold.errors import StoreError, UserError
from cotswold.files import MalformedError, take

_READ_TOGETHER = 64
"""Samples taken from the buffer at once when no batch size is set."""


class StoreDataset(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples ``(x, y)`` of one split, or batches of them, for a `torch.utils.data.DataLoader`.

    ``x`` is float32 (channel, y, x) and contiguous; a vector is (channel, 1, 1). ``y`` is int64: the class,
    or -1 without labels; for regression it is float32 (target,). With ``batch_size``, both have a leading
    batch axis; pass ``batch_size=None`` to the DataLoader in this case.

    One pass yields every sample once, over all workers of the DataLoader together. The order depends on
    ``(seed, epoch)`` and on the numbers of workers and ranks. Only `set_epoch` changes the epoch: call it
    before each pass, as with torch's DistributedSampler; otherwise each pass has the same order. Persistent
    workers also follow it.

    `state_dict` describes the latest pass in this process; `load_state_dict` sets the start of the next pass.
    Each worker has its own state, as torchdata's StatefulDataLoader expects.

    Args:
        store: The store or its path.
        split: "train", "validation" or "test".
        seed: Seed of the shuffling.
        shuffle: Shuffle each epoch; False reads in stored order.
        batch_size: Samples in a batch; None yields single samples.
        rank: Number of this process. It receives its part of each epoch, in whole batches except the last.
            With ``shuffle``, all ranks have equally many samples: a remainder of fewer than ``world_size``
            is left out, a different one each epoch. Without it, every sample is used and the
            numbers of samples may differ by one.
        world_size: Number of processes.
        buffer_bytes: Memory of the shuffle buffer; None chooses by `shuffle_bytes`.
        augmentation: Makes variants, new ones in each epoch; they do not depend on worker or rank.

    Raises:
        UserError: if ``batch_size`` or ``rank`` is out of range.
        StoreError: if the store cannot be opened.
    """

    def __init__(
        self,
        store: Store | str | Path,
        split: str = "train",
        *,
        seed: int = 0,
        shuffle: bool = True,
        batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        buffer_bytes: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}; use None for single samples")
        if not 0 <= rank < world_size:
            raise UserError(f"rank must satisfy 0 <= rank < world_size, got rank {rank} of {world_size}")
        opened = store if isinstance(store, Store) else Store(store)
        self._path, self._identity = opened.path.absolute(), opened.identity
        self._split, self._batch_size, self._rank, self._world_size = split, batch_size, rank, world_size
        self._rows = Split(len(opened.labels(split)), opened.shard(split), seed, shuffle)
        most = shuffle_bytes(opened, split) if buffer_bytes is None else buffer_bytes
        self._order = Buffered(self._rows, max(1, most // stored_bytes(opened)))
        self._augmentation = augmentation
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # persistent workers see changes
        self._passed = 0
        self._position = 0
        self._resumed: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of samples, or batches, of this rank in one pass."""
        samples = len(self._part_of_rank(np.arange(self._rows.samples)))
        return samples if self._batch_size is None else -(-samples // self._batch_size)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None for single samples."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass.

        The pass starts at the beginning, or at a state that was just loaded for this epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            UserError: if ``epoch`` is negative.
        """
        if epoch < 0:
            raise UserError(f"epoch must be at least 0, got {epoch}")
        if self._resumed is not None and self._resumed["epoch"] == epoch:
            return
        self._epoch.fill_(epoch)
        self._passed, self._position, self._resumed = epoch, 0, None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        begin = self._start_position()
        self._passed, self._position = int(self._epoch), begin
        return self._samples(self._passed, begin)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest pass in this process, as JSON values."""
        if self._resumed is not None:
            return dict(self._resumed)
        worker, workers = worker_of_loader()
        return {
            **self._settings(),
            "worker": worker,
            "workers": workers,
            "buffer": self._order.buffer,
            "epoch": self._passed,
            "position": self._position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next pass at the position in ``state``.

        Args:
            state: A value of `state_dict`.

        Raises:
            UserError: if the state is malformed, or belongs to another store or other settings.
        """
        nature = {"augmentation": None, **self._settings()}  # absent from older states
        different = [key for key, value in nature.items() if state.get(key) != value]
        if different:
            raise UserError(
                f"the data set's state has another {' and '.join(different)}; resume with the same settings"
            )
        try:
            numbers = {
                name: take(state, name, int) for name in ("worker", "workers", "buffer", "epoch", "position")
            }
        except MalformedError as error:
            raise UserError(f"the data set's state {error}; resume from another checkpoint") from error
        if min(numbers.values()) < 0 or numbers["buffer"] < 1 or numbers["position"] > self._rows.samples:
            raise UserError(
                f"the data set's state has position {numbers['position']} in epoch {numbers['epoch']}, "
                "which does not exist; resume from another checkpoint"
            )
        self._epoch.fill_(numbers["epoch"])
        self._order = Buffered(self._rows, numbers["buffer"])
        self._resumed = {**self._settings(), **numbers}

    def _start_position(self) -> int:
        """Return the position at which a pass begins in this process."""
        if self._resumed is None:
            return 0
        state, self._resumed = self._resumed, None
        if (state["worker"], state["workers"]) != worker_of_loader():
            raise UserError(
                f"the data set's state belongs to worker {state['worker']} of {state['workers']}; resume "
                "with the same number of workers (StatefulDataLoader gives each worker its own state)"
            )
        return int(state["position"])

    def _settings(self) -> dict[str, Any]:
        """Return the settings with which a state must agree."""
        return {
            "store": self._identity,
            "split": self._split,
            "seed": self._rows.seed,
            "shuffle": self._rows.shuffle,
            "batch_size": self._batch_size,
            "rank": self._rank,
            "world_size": self._world_size,
            **({} if self._augmentation is None else {"augmentation": self._augmentation.state()}),
        }

    def _samples(self, epoch: int, begin: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples or batches of one pass in this process, from position ``begin``."""
        store = Store(self._path)  # opened in this process: handles and threads do not survive a fork
        if store.identity != self._identity:
            raise StoreError(
                f"{self._path} has changed since the data set was created; create the data set again"
            )
        rows = self._part_of_worker(self._part_of_rank(self._order.rows(epoch)))[begin:]
        together = self._batch_size or _READ_TOGETHER
        handed = Epoch(epoch, rows, together)
        split, shard, labels = self._split, self._rows.shard, store.labels(self._split)

        def read(number: int) -> np.ndarray[Any, Any]:
            inside = self._rows.rows_of(number)
            return store.read_stored(split, int(inside[0]), int(inside[-1]) + 1)

        buffer = Buffer(self._order, shard, together, iter([handed]), read)
        for batch in handed.batches():
            values = store.transform.restored(buffer.take(epoch, batch))
            if self._augmentation is not None:
                values = self._augmentation(values, keys(self._rows.seed, epoch, batch))
            x = torch.from_numpy(values)
            y = torch.from_numpy(labels[batch])
            if self._batch_size is not None:
                self._position += len(batch)
                yield x, y
                continue
            for one, label in zip(x, y, strict=True):
                self._position += 1
                yield one.clone(), label.clone()  # copies, or keeping one sample would keep the whole batch

    def _part_of_rank(self, rows: Rows) -> Rows:
        """Return this rank's part of an epoch."""
        return part_of_rank(rows, self._rank, self._world_size, is_even=self._rows.shuffle)

    def _part_of_worker(self, rows: Rows) -> Rows:
        """Return this worker's part of the rank's rows: whole batches, except the last."""
        return part_of_worker(rows, self._batch_size or 1, *worker_of_loader())


def worker_of_loader() -> tuple[int, int]:
    """Return the number of this DataLoader worker and the total number of workers."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
