"""Measure Cotswold's data servers: ``python -m lib.data_servers.cotswold_servers JSON`` in benchmarks/.

Knows: a pool and its only trainer. Does not know: the caller, the comparison.

The head is a separate process, as for a run with ``[data] servers = N``. The trainer has a reader, as a run
has, whose thread requests batches and keeps some ready.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from baselines.common import KERNELS, LoaderSettings, measured
from cotswold.data import Reader, Store
from cotswold.data.loading.served_store import DatasetView
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient, request_settings
from cotswold.dataservice.runtime.feed import ServedFeed
from cotswold.dataservice.runtime.pool import PoolSettings
from cotswold.host import Token
from cotswold.training.data.data_servers import head

WINDOW = 8
"""Number of requests in flight, as in a run."""


@dataclass(frozen=True)
class Serving:
    """Settings of the servers in addition to those of every loader."""

    store: str
    cache_bytes: int


def main(told: dict[str, object]) -> None:
    """Start a pool, measure, end it."""
    serving = Serving(**told.pop("serving"))  # type: ignore[arg-type]  # from JSON
    feeding = LoaderSettings(**told)  # type: ignore[arg-type]  # from JSON
    store, token = Store(serving.store), Token.new()
    with ExitStack() as held:
        asking = request_settings(WINDOW, 30.0)
        client = held.enter_context(DataClient(token, store=store.identity, request_settings=asking))
        pool, _ = head(
            PoolSettings(servers=feeding.workers),
            {"store": serving.store, "cache_bytes": serving.cache_bytes, "augmentation_json": feeding.tables},
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
