"""A split of a store as a PyTorch data set, for any training loop.

Knows: a store, an order, workers of a DataLoader, ranks. Does not know: what the samples are for.
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
"""Samples that are taken from the buffer at a time where they are handed out singly."""


class StoreDataset(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples ``(x, y)`` of one split, or batches of them, for a `torch.utils.data.DataLoader`.

    ``x``: float32 (channel, y, x), contiguous; a vector is (channel, 1, 1). ``y``: int64, the class or -1
    without labels; or float32 (target,). With ``batch_size`` both have a batch in front; then give the
    DataLoader ``batch_size=None``.

    One pass hands out every sample once, over all workers of the DataLoader together, in an order that
    depends on ``(seed, epoch)``, the number of workers and of ranks. The epoch changes by `set_epoch` alone:
    call it before each pass, as with torch's DistributedSampler, or each pass has the same order. It reaches
    workers that persist, too.

    ``rank`` and ``world_size``: this process has its part of each epoch. Shuffled, all ranks have as many
    samples, and what cannot be dealt evenly (fewer than ``world_size``) is left out, others each epoch;
    in order (``shuffle=False``), every sample is handed out and ranks may differ by one. With ``batch_size``,
    parts are whole batches but for the last.

    ``augmentation``: what makes variants, other ones in each epoch, whichever worker or rank hands them out.

    `state_dict` is that of the latest pass in this process; what `load_state_dict` takes decides where the
    next pass begins. Workers keep states of their own, as torchdata's StatefulDataLoader collects them.
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
            raise UserError(
                f"a batch of {batch_size} samples is none; give 1 or more, or None for single samples"
            )
        if not 0 <= rank < world_size:
            raise UserError(f"rank {rank} of {world_size} is none; give 0 <= rank < world_size")
        opened = store if isinstance(store, Store) else Store(store)
        self._path, self._identity = opened.path.absolute(), opened.identity
        self._split, self._batch_size, self._rank, self._world_size = split, batch_size, rank, world_size
        self._rows = Split(len(opened.labels(split)), opened.shard(split), seed, shuffle)
        most = shuffle_bytes(opened, split) if buffer_bytes is None else buffer_bytes
        self._order = Buffered(self._rows, max(1, most // stored_bytes(opened)))
        self._augmentation = augmentation
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers that persist hear of it
        self._passed = 0
        self._position = 0
        self._resumed: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Samples of this rank in one pass, or batches."""
        samples = len(self._part_of_rank(np.arange(self._rows.samples)))
        return samples if self._batch_size is None else -(-samples // self._batch_size)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where it hands out single ones."""
        return self._batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Have the next pass be that of ``epoch``: from its beginning, or where a state of it that was just
        loaded stands."""
        if epoch < 0:
            raise UserError(f"epoch {epoch} is none; give 0 or more")
        if self._resumed is not None and self._resumed["epoch"] == epoch:
            return
        self._epoch.fill_(epoch)
        self._passed, self._position, self._resumed = epoch, 0, None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        begin = self._begin()
        self._passed, self._position = int(self._epoch), begin
        return self._samples(self._passed, begin)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest pass stands in this process, as JSON can keep it."""
        if self._resumed is not None:
            return dict(self._resumed)
        worker, workers = worker_of_loader()
        return {
            **self._nature(),
            "worker": worker,
            "workers": workers,
            "buffer": self._order.buffer,
            "epoch": self._passed,
            "position": self._position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next pass where another one stood. Raises UserError where that read something else, or
        otherwise, or if this is no state."""
        nature = {"augmentation": None, **self._nature()}  # states of versions before have none
        different = [key for key, value in nature.items() if state.get(key) != value]
        if different:
            raise UserError(
                f"the data set's state belongs to another {' and '.join(different)}; resume with the same"
            )
        try:
            numbers = {
                name: take(state, name, int) for name in ("worker", "workers", "buffer", "epoch", "position")
            }
        except MalformedError as error:
            raise UserError(f"the data set's state {error}; resume from another checkpoint") from error
        if min(numbers.values()) < 0 or numbers["buffer"] < 1 or numbers["position"] > self._rows.samples:
            raise UserError(
                f"the data set's state stands at sample {numbers['position']} of epoch {numbers['epoch']}, "
                "which "
                "is none; resume from another checkpoint"
            )
        self._epoch.fill_(numbers["epoch"])
        self._order = Buffered(self._rows, numbers["buffer"])
        self._resumed = {**self._nature(), **numbers}

    def _begin(self) -> int:
        """The position at which a pass begins in this process."""
        if self._resumed is None:
            return 0
        state, self._resumed = self._resumed, None
        if (state["worker"], state["workers"]) != worker_of_loader():
            raise UserError(
                f"the data set's state is that of worker {state['worker']} of {state['workers']}; resume "
                "with as "
                "many workers (StatefulDataLoader hands each its own)"
            )
        return int(state["position"])

    def _nature(self) -> dict[str, Any]:
        """What a state must agree with."""
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
        """What one pass hands out in this process, from a position of it."""
        store = Store(self._path)  # of this process: neither handles nor threads outlive a fork
        if store.identity != self._identity:
            raise StoreError(f"{self._path} is another store than when the data set was made; make it anew")
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
                yield one.clone(), label.clone()  # of their own, or keeping one would keep all

    def _part_of_rank(self, rows: Rows) -> Rows:
        """What this rank has of an epoch."""
        return part_of_rank(rows, self._rank, self._world_size, is_even=self._rows.shuffle)

    def _part_of_worker(self, rows: Rows) -> Rows:
        """What this worker has of a rank's part: whole batches, but for the last."""
        return part_of_worker(rows, self._batch_size or 1, *worker_of_loader())


def worker_of_loader() -> tuple[int, int]:
    """The number of this worker of a DataLoader, and of all."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
