"""Our own data servers, measured as the rivals are: ``python -m measures.feeding.own JSON`` in benchmarks/.

Knows: a pool and its only trainer. Does not know: who asks, what is compared.

The head is a process of its own, as for a run with ``[data] servers = N``; whoever asks for batches is the
trainer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import torch

from cotswold.cluster.batches import window_bytes
from cotswold.cluster.data_pool import PoolSettings
from cotswold.cluster.feeding import DataClient, asking_of
from cotswold.data import Store
from cotswold.data.buffer import Epoch
from cotswold.data.making import Wanted
from cotswold.data.order import Buffered, Split
from cotswold.data.reader import shuffle_bytes, stored_bytes
from cotswold.data.serving import View
from cotswold.host import Token
from cotswold.training.data_feed import head
from rivals.feeding import KERNELS, Feeding, measured

WINDOW = 8
"""Batches that are asked ahead, as in a run."""


@dataclass(frozen=True)
class Serving:
    """What is served beside what every rival is told."""

    store: str
    cache_bytes: int


def batches(client: DataClient, store: Store, feeding: Feeding) -> Iterator[torch.Tensor]:
    """Epoch after epoch, in the order of a run."""
    rows = Split(store.splits["train"], store.shard("train"), 0)
    order = Buffered(rows, max(1, shuffle_bytes(store, "train") // stored_bytes(store)))
    wanted = (
        Wanted(epoch, each)
        for epoch in count()
        for each in Epoch(epoch, order.rows(epoch), feeding.batch).batches()
        if len(each) == feeding.batch
    )
    shape = store.shape
    view = View("train", 0, None, feeding.tables)
    sample_bytes = window_bytes((shape.channels, shape.height, shape.width))
    return (samples for samples, _ in client.batches(view, wanted, sample_bytes))


def main(told: dict[str, object]) -> None:
    """Start a pool, measure, end it."""
    serving = Serving(**told.pop("serving"))  # type: ignore[arg-type]  # of JSON
    feeding = Feeding(**told)  # type: ignore[arg-type]  # of JSON
    store, token = Store(serving.store), Token.new()
    with ExitStack() as held:
        asking = asking_of(WINDOW, 30.0)
        client = held.enter_context(DataClient(token, store=store.identity, asking=asking))
        pool, _ = head(
            PoolSettings(servers=feeding.workers),
            {"store": serving.store, "cache_bytes": serving.cache_bytes, "varying": feeding.tables},
            token,
            {client.name: client.own_address},
        )
        held.enter_context(pool)
        measured(feeding, batches(client, store, feeding), KERNELS, lambda: client.waited)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(sys.argv[1]))
