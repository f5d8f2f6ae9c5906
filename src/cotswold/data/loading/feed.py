"""Where the batches of a reader are made.

Knows: batches that are wanted, in order. Does not know: epochs without end, threads, processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import tee
from typing import Any, Protocol

from numpy.typing import NDArray

from cotswold.data.loading.batching import Batch, Maker, Wanted
from cotswold.data.loading.order import Order, Split
from cotswold.data.loading.shuffle_buffer import Buffer, Epoch


class Feed(Protocol):
    """Makes what is wanted, and may do so ahead."""

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """The batches of epoch after epoch, in their order; the iterator may be closed at any time."""

    def stop(self) -> None:
        """Have an iterator end that waits for others in another thread."""


class StoreFeed:
    """Makes batches in the thread that asks for them, of shards that pass through a buffer."""

    def __init__(self, maker: Maker, split: Split, batch: int) -> None:
        """``batch``: samples of one, at most."""
        self._maker, self._split, self._batch = maker, split, batch

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """As `Feed.batches`. Raises StoreError for a damaged chunk."""
        handed, read = tee(epochs)
        buffer = Buffer(order, self._split.shard, self._batch, read, self._read)
        for epoch in handed:
            for rows in epoch.batches():
                yield self._maker.batch(Wanted(epoch.number, rows), buffer.take(epoch.number, rows))

    def stop(self) -> None:
        """As `Feed.stop`: it never waits for others."""

    def _read(self, shard: int) -> NDArray[Any]:
        rows = self._split.rows_of(shard)
        return self._maker.read(int(rows[0]), int(rows[-1]) + 1)
