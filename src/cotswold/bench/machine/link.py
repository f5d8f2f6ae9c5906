"""Timing of the link between two ranks.

Knows: messages both ways at once, as in an exchange. Does not know: who starts ranks, the use of the
figures. Functions here are called on ranks of a pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import Box, ExchangePlan
from cotswold.mesh import Exchange, Mesh
from cotswold.mesh.maps.exchange import ExchangeHandle

SHORT_BYTES = 64
PINGS = 50


def prepare(rank: PoolRank, bytes_: int) -> None:
    """Make `ping`, `exchange`, `work` and `both` actions of this rank; the work takes about as long as the
    exchange."""
    short, long = (_exchange_both_ways(size) for size in (SHORT_BYTES, bytes_))
    a, b = torch.randn(256, 256), torch.randn(256, 256)

    def ping() -> None:
        for _ in range(PINGS):
            short().finish()

    def exchange() -> None:
        long().finish()

    def work() -> None:
        for _ in range(rank.cache.get("products", 1)):
            torch.mm(a, b)

    def both() -> None:
        under_way = long()
        work()
        under_way.finish()

    rank.actions = {"ping": ping, "exchange": exchange, "work": work, "both": both}
    for action in rank.actions.values():
        action()


def adjust_work(rank: PoolRank, seconds: float) -> None:
    """Adjust the work to take about ``seconds``."""
    rank.cache["products"] = 20
    start = time.perf_counter()
    rank.actions["work"]()
    each = (time.perf_counter() - start) / 20
    rank.cache["products"] = max(1, round(seconds / each))


def _exchange_both_ways(bytes_: int) -> Callable[[], ExchangeHandle]:
    """The start of an exchange of ``bytes_`` bytes each way, between contiguous rows."""
    rows = (Box((0, 0), (1, bytes_)), Box((1, 0), (2, bytes_)))
    mesh = Mesh.of("1x2")
    exchange = Exchange(mesh, ExchangePlan(rows, (rows[1], rows[0])))
    part, window = (torch.zeros(1, 1, 1, bytes_, dtype=torch.uint8) for _ in range(2))
    return lambda: exchange.start(part, into=window)
