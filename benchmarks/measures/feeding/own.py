"""Our own data servers, measured as the rivals are: ``python -m measures.feeding.own JSON`` in benchmarks/.

Knows: a pool and its only trainer. Does not know: who asks, what is compared.

The head is a process of its own, as for a run with ``[data] servers = N``, and whoever takes batches has a
reader, as a run has: its thread asks for them, and keeps some ready.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from cotswold.data import Reader, Store
from cotswold.data.service.store import DatasetView
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient, request_settings
from cotswold.dataservice.runtime.feed import ServedFeed
from cotswold.dataservice.runtime.pool import PoolSettings
from cotswold.host import Token
from cotswold.training.data.service import head
from rivals.feeding import KERNELS, Feeding, measured

WINDOW = 8
"""Requests that are asked ahead, as in a run."""


@dataclass(frozen=True)
class Serving:
    """What is served beside what every rival is told."""

    store: str
    cache_bytes: int


def main(told: dict[str, object]) -> None:
    """Start a pool, measure, end it."""
    serving = Serving(**told.pop("serving"))  # type: ignore[arg-type]  # of JSON
    feeding = Feeding(**told)  # type: ignore[arg-type]  # of JSON
    store, token = Store(serving.store), Token.new()
    with ExitStack() as held:
        asking = request_settings(WINDOW, 30.0)
        client = held.enter_context(DataClient(token, store=store.identity, request_settings=asking))
        pool, _ = head(
            PoolSettings(servers=feeding.workers),
            {"store": serving.store, "cache_bytes": serving.cache_bytes, "varying": feeding.tables},
            token,
            {client.name: client.address},
        )
        held.enter_context(pool)
        shape = store.shape
        sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
        feed = ServedFeed(client, DatasetView("train", 0, None, feeding.tables), sample_bytes)
        reader = Reader(store, "train", feeding.batch, feed=feed)
        held.callback(reader.close)
        measured(feeding, _samples(reader), KERNELS)


def _samples(reader: Reader) -> Iterator[torch.Tensor]:
    while True:
        yield reader.next()[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]))
