"""Samples that were read and not yet handed out, in memory of a fixed size.

Knows: an order, which rows are wanted when. Does not know: files, batches of tensors, threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.loading.order import Order, Rows

Read = Callable[[int], NDArray[Any]]
"""Reads the shard of a number, whole: (image, channel, y, x)."""


@dataclass(frozen=True)
class Epoch:
    """The rows that one epoch hands out from some place on, cut into batches."""

    number: int
    rows: Rows
    batch: int

    def batches(self) -> Iterator[Rows]:
        """The rows of each batch."""
        return (self.rows[start : start + self.batch] for start in range(0, len(self.rows), self.batch))


class Buffer:
    """Reads the shards of epoch after epoch, each when there is room for it, and hands out rows of them.

    Never more than `capacity` samples are held: those that wait by the order, a shard that is being read and
    a batch. While the last samples of an epoch are handed out, shards of the next fill their places, so
    that the disk never rests for a whole buffer. ``begun``: the epochs from the one to go on with; of a shard
    only the rows that are yet to be handed out are kept, and a shard without any is not read.
    """

    def __init__(self, order: Order, shard: int, batch: int, begun: Iterator[Epoch], read: Read) -> None:
        self.capacity = order.held + shard + batch
        self._order, self._shard, self._read = order, shard, read
        self._coming = self._reads(begun)
        self._free = list(range(self.capacity))
        self._places: dict[tuple[int, int], int] = {}
        self._slots: NDArray[Any] | None = None

    def take(self, epoch: int, rows: Rows) -> NDArray[Any]:
        """The samples of some rows, which then need no place any more: (image, channel, y, x)."""
        while len(self._free) >= self._shard and self._load():
            pass
        places = [self._places.pop((epoch, int(row))) for row in rows]
        self._free += places
        assert self._slots is not None, "a row was loaded"
        samples: NDArray[Any] = self._slots[places]
        return samples

    def _load(self) -> bool:
        """Read one shard and keep the rows of it that are wanted; whether there was one."""
        coming = next(self._coming, None)
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
        """Epochs, numbers of shards and the rows of them that are wanted, in the order of reading."""
        for epoch in begun:
            sought = np.sort(epoch.rows)
            for shard in self._order.shards(epoch.number).tolist():
                low, high = np.searchsorted(sought, (shard * self._shard, (shard + 1) * self._shard))
                if high > low:
                    yield epoch.number, shard, sought[low:high]
