"""A shuffle buffer: loaded samples that are not yet in a batch, in memory of a fixed size.

Knows: an order, the batch that needs each row. Does not know: files, tensors, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.loading.order import Order, Rows

Read = Callable[[int], NDArray[Any]]
"""Reads a whole shard by its number: (image, channel, y, x)."""


@dataclass(frozen=True)
class Epoch:
    """The rows of one epoch from some position on, cut into batches."""

    number: int
    rows: Rows
    batch: int

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of each batch."""
        return (self.rows[start : start + self.batch] for start in range(0, len(self.rows), self.batch))


class Buffer:
    """Load the shards of each epoch when there is room, and hand out their rows.

    At most `capacity` samples are in memory: the shuffle buffer, the shard being read and one batch.
    While the last samples of an epoch are handed out, shards of the next epoch fill their slots, so the
    disk never pauses for a whole buffer. ``begun`` yields the epochs from the resumed one on. Only rows
    that are still needed are kept, and a shard without such rows is not read.
    """

    def __init__(self, order: Order, shard: int, batch: int, begun: Iterator[Epoch], read: Read) -> None:
        self.capacity = order.max_waiting_samples + shard + batch
        self._order, self._shard, self._read = order, shard, read
        self._next_reads = self._reads(begun)
        self._free = list(range(self.capacity))
        self._places: dict[tuple[int, int], int] = {}
        self._slots: NDArray[Any] | None = None

    def take(self, epoch: int, rows: Rows) -> NDArray[Any]:
        """Return the samples of some rows, (image, channel, y, x), and free their slots."""
        while len(self._free) >= self._shard and self._load():
            pass
        places = [self._places.pop((epoch, int(row))) for row in rows]
        self._free += places
        assert self._slots is not None, "a row was loaded"
        samples: NDArray[Any] = self._slots[places]
        return samples

    def _load(self) -> bool:
        """Read one shard and keep its needed rows; return False if no shard is left."""
        coming = next(self._next_reads, None)
        if coming is None:
            return False
        epoch, shard, wanted = coming
        stored = self._read(shard)
        if self._slots is None:
            self._slots = np.empty((self.capacity, *stored.shape[1:]), stored.dtype)
        kept, self._free = self._free[: len(wanted)], self._free[len(wanted) :]
        self._slots[kept] = stored[wanted - shard * self._shard]
        self._places.update(zip(((epoch, row) for row in wanted.tolist()), kept, strict=True))
        return True

    def _reads(self, begun: Iterator[Epoch]) -> Iterator[tuple[int, int, Rows]]:
        """Yield (epoch, shard number, needed rows) in reading order."""
        for epoch in begun:
            sought = np.sort(epoch.rows)
            for shard in self._order.shards(epoch.number).tolist():
                low, high = np.searchsorted(sought, (shard * self._shard, (shard + 1) * self._shard))
                if high > low:
                    yield epoch.number, shard, sought[low:high]
