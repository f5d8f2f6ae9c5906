"""The feed of a reader whose batches data servers make.

Knows: a client of a pool, epochs. Does not know: messages, who makes batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from cotswold.data.loading.batching import Batch, Wanted
from cotswold.data.loading.order import Order
from cotswold.data.loading.shuffle_buffer import Epoch
from cotswold.data.service.store import View
from cotswold.dataservice.runtime.client import DataClient


class ServedFeed:
    """The `Feed` of a reader whose batches data servers make."""

    def __init__(self, client: DataClient, view: View, sample_bytes: int) -> None:
        """``sample_bytes``: of a sample of that view, float32."""
        self._client, self._view, self._sample_bytes = client, view, sample_bytes

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """As `Feed.batches`. Raises MachineError where nobody makes them."""
        wanted = (Wanted(epoch.number, rows) for epoch in epochs for rows in epoch.batches())
        return self._client.batches(self._view, wanted, self._sample_bytes)

    def stop(self) -> None:
        """As `Feed.stop`."""
        self._client.stop()
