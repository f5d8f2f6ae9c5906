"""The feed of a reader that gets its batches from data servers.

Knows: a client of a pool, epochs. Does not know: messages, servers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from cotswold.data.loading.batching import Batch, BatchRows
from cotswold.data.loading.order import Order
from cotswold.data.loading.served_store import DatasetView
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.dataservice.runtime.client import DataClient


class ServedFeed:
    """The `BatchSource` of a reader that gets its batches from data servers."""

    def __init__(self, client: DataClient, view: DatasetView, sample_bytes: int) -> None:
        """``sample_bytes``: float32 bytes of a sample of the view."""
        self._client, self._view, self._sample_bytes = client, view, sample_bytes

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """See `BatchSource.batches`. Raises MachineError if no server makes the batches."""
        wanted = (BatchRows(epoch.number, rows) for epoch in epochs for rows in epoch.batches())
        return self._client.batches(self._view, wanted, self._sample_bytes)

    def stop(self) -> None:
        """See `BatchSource.stop`."""
        self._client.stop()
