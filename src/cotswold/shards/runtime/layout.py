"""Split of a flat vector into shards, and their distribution over servers.

Knows: integers, names of tensors. Does not know: numbers, transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotswold.shards.runtime.work import TensorSlot
from cotswold.wire import Shard


def split_into_shards(
    layout: Sequence[TensorSlot], item_bytes: int, shard_bytes: int, servers: Sequence[str]
) -> tuple[Shard, ...]:
    """Return the tensors in blocks of whole rows, of about ``shard_bytes`` each, distributed to servers in
    contiguous ranges.

    A shard is named by its tensor and block. The size of a block depends only on the tensor. So the number of
    servers changes no bit, and each block keeps its name on other servers.

    >>> from cotswold.shards.runtime.work import TensorSlot
    >>> layout = [TensorSlot("weight", 300, 400), TensorSlot("bias", 300, 1)]
    >>> for one in split_into_shards(layout, 4, 1 << 18, ["a", "b"]):
    ...     print(one.server, one.tensor, one.block, one.start, one.stop)
    a weight 0 0 60000
    b weight 1 60000 120000
    b bias 0 120000 120300
    """
    size = sum(slot.rows * slot.columns for slot in layout)
    found: list[Shard] = []
    start = 0
    for slot in layout:
        blocks = min(slot.rows, -(-slot.rows * slot.columns * item_bytes // shard_bytes))
        for block in range(blocks):
            rows = slot.rows * (block + 1) // blocks - slot.rows * block // blocks
            stop = start + rows * slot.columns
            server = servers[(start + stop) * len(servers) // (2 * size)]  # the server at its middle
            found.append(Shard(len(found), server, start, stop, slot.name, block))
            start = stop
    return tuple(found)


def assign_to_servers(shards: Sequence[Shard], servers: Sequence[str]) -> tuple[Shard, ...]:
    """Return the same shards on other servers, in contiguous ranges of about equal size."""
    size = sum(one.stop - one.start for one in shards)
    found, before = [], 0
    for one in shards:
        count = one.stop - one.start
        found.append(replace(one, server=servers[(2 * before + count) * len(servers) // (2 * size)]))
        before += count
    return tuple(found)
