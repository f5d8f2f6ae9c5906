"""Buckets whose contents follow from their index, and a process that writes them until it is killed.

Knows: a block store. Does not know: the killer.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path

from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot

BUCKETS = tuple(f"bucket {number}" for number in range(4))
BLOCKS = tuple(BlockKey(vector, shard) for vector in ("weights", "squares") for shard in range(3))


def changes_at(bucket: str, index: int) -> Mapping[BlockKey, bytes]:
    """Return the blocks that change with an index: all with the first, some with every other."""
    return {
        key: random.Random(f"{bucket} {index} {key}").randbytes(2000 * (place + 1))
        for place, key in enumerate(BLOCKS)
        if index == 1 or index % (place + 1) == 0
    }


def state_at(bucket: str, index: int) -> Mapping[BlockKey, bytes]:
    """Return all blocks at an index."""
    found = dict(changes_at(bucket, 1))
    for place, key in enumerate(BLOCKS):
        last = index - index % (place + 1)
        if last > 1:
            found[key] = changes_at(bucket, last)[key]
    return found


def snapshot(bucket: str, index: int) -> BucketSnapshot:
    """Return the written changes of an index."""
    return BucketSnapshot(bucket, index, f"head {bucket} {index}".encode(), changes_at(bucket, index))


def write_for_ever(folder: Path) -> None:
    """Continue writing from the store's state, and print each index once it is on disk."""
    with BlockStore(folder) as store:
        at = {bucket: head.index for bucket, head in store.heads().items()}
        while True:
            group = [snapshot(bucket, at.get(bucket, 0) + 1) for bucket in BUCKETS if random.random() < 0.5]
            store.write(*group)
            for each in group:
                at[each.bucket] = each.index
                print(each.bucket.removeprefix("bucket "), each.index, flush=True)


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
