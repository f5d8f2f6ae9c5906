"""The source of a reader's batches.

Knows: requested batches, in order. Does not know: endless epochs, threads, processes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import tee
from typing import Any, Protocol

from numpy.typing import NDArray

from cotswold.data.loading.batching import Batch, BatchBuilder, BatchRows
from cotswold.data.loading.order import Order, Split
from cotswold.data.loading.shuffle_buffer import Buffer, Epoch


class BatchSource(Protocol):
    """Produces the requested batches, possibly ahead of time."""

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """Yield the batches of all epochs in order; the iterator may be closed at any time."""

    def stop(self) -> None:
        """Interrupt an iterator that waits in another thread."""


class StoreBatchSource:
    """Build batches in the calling thread from shards that pass through a shuffle buffer."""

    def __init__(self, maker: BatchBuilder, split: Split, batch: int) -> None:
        """``batch`` is the maximum number of samples in a batch."""
        self._maker, self._split, self._batch = maker, split, batch

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """See `BatchSource.batches`. Raises StoreError for a damaged chunk."""
        handed, read = tee(epochs)
        buffer = Buffer(order, self._split.shard, self._batch, read, self._read)
        for epoch in handed:
            for rows in epoch.batches():
                yield self._maker.batch(BatchRows(epoch.number, rows), buffer.take(epoch.number, rows))

    def stop(self) -> None:
        """See `BatchSource.stop`: this source never waits."""

    def _read(self, shard: int) -> NDArray[Any]:
        rows = self._split.rows_of(shard)
        return self._maker.read(int(rows[0]), int(rows[-1]) + 1)
