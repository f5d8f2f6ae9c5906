"""What two ranks time so that the link between them can be described.

Knows: messages both ways at once, as an exchange has them. Does not know: who starts ranks, what is done with
the figures. Functions here are called on ranks of a crew.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.bench.rank import Rank

SHORT_BYTES = 64
PINGS = 50


def prepare(rank: Rank, bytes_: int) -> None:
    """Make `ping`, `exchange`, `work` and `both` actions of this rank's; the work takes about as long as the
    exchange."""
    other = 1 - rank.number
    short = [torch.zeros(SHORT_BYTES, dtype=torch.uint8) for _ in range(2)]
    long = [torch.zeros(bytes_, dtype=torch.uint8) for _ in range(2)]
    a, b = torch.randn(256, 256), torch.randn(256, 256)

    def ping() -> None:
        for _ in range(PINGS):
            _finish(_begun(short, other))

    def exchange() -> None:
        _finish(_begun(long, other))

    def work() -> None:
        for _ in range(rank.kept.get("products", 1)):
            torch.mm(a, b)

    def both() -> None:
        works = _begun(long, other)
        work()
        _finish(works)

    rank.actions = {"ping": ping, "exchange": exchange, "work": work, "both": both}
    for action in rank.actions.values():
        action()


def lengthen(rank: Rank, seconds: float) -> None:
    """Make the work take about so long."""
    rank.kept["products"] = 20
    start = time.perf_counter()
    rank.actions["work"]()
    each = (time.perf_counter() - start) / 20
    rank.kept["products"] = max(1, round(seconds / each))


def _begun(tensors: list[Tensor], other: int) -> list[dist.Work]:
    out, into = tensors
    return dist.batch_isend_irecv([dist.P2POp(dist.irecv, into, other), dist.P2POp(dist.isend, out, other)])


def _finish(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()
