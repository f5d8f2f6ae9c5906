"""How a flat vector is cut into shards, and which server has which.

Knows: integers. Does not know: numbers, messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.optim.blocks import BLOCK
from cotswold.server.messages import Shard


def shards_of(size: int, item_bytes: int, shard_bytes: int, servers: Sequence[str]) -> tuple[Shard, ...]:
    """Ranges of a vector of ``size`` numbers, of about ``shard_bytes`` each, dealt to servers in runs.

    A shard is whole blocks of what a dot adds up at a time, where it is that long; so neither the number of
    servers nor that of shards changes a bit.

    >>> [(one.server, one.start, one.stop) for one in shards_of(150_000, 4, 1 << 18, ["a", "b"])]
    [('a', 0, 65536), ('a', 65536, 131072), ('b', 131072, 150000)]
    """
    step = max(1, shard_bytes // item_bytes)
    if step >= BLOCK:
        step -= step % BLOCK
    starts = range(0, size, step)
    each = -(-len(starts) // len(servers))
    return tuple(
        Shard(number, servers[number // each], start, min(start + step, size), "", number)
        for number, start in enumerate(starts)
    )
