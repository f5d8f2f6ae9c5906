"""What is written to a block store at once: contents that are appended, and the heads that will name them.

Knows: snapshots, heads, what is stored of a block. Does not know: files, the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotswold.replication.disk.compression import packed
from cotswold.replication.disk.records import (
    Block,
    BlockKey,
    Buffer,
    Head,
    Snapshot,
    block_key,
    checksum_of,
    head_key,
)


class Group:
    """One such; what it is given must not change until it is written."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        """``heads``: those in the index."""
        self._before = heads
        self._heads: dict[str, Head] = {}
        self._parts: dict[tuple[str, BlockKey], Buffer] = {}
        """What is appended, by whose it is."""

    @property
    def parts(self) -> Sequence[Buffer]:
        """What is to be appended."""
        return [*self._parts.values()]

    @property
    def size(self) -> int:
        """Bytes of these."""
        return sum(map(len, self._parts.values()))

    def add(self, snapshot: Snapshot) -> None:
        """A snapshot is written, after those that were added; raises ValueError for names that cannot be."""
        bucket, index = snapshot.bucket, snapshot.index
        head_key(bucket)
        blocks = dict(self._newest(bucket).blocks)
        for key, contents in snapshot.blocks.items():
            raw = memoryview(contents).cast("B")
            stored = packed(raw)
            checksum = checksum_of(block_key(bucket, key), index, stored)
            blocks[key] = Block(index, 0, 0, len(stored), raw.nbytes, checksum)
            self._parts[bucket, key] = stored
        self._heads[bucket] = Head(index, bytes(snapshot.head), blocks)

    def move(self, bucket: str, key: BlockKey, stored: Callable[[Block], bytes | None]) -> None:
        """A block is written again as it is, unless a newer one is; ``stored`` reads it, and it stays where
        it cannot be read."""
        if (bucket, key) in self._parts:
            return
        head = self._newest(bucket)
        found = stored(head.blocks[key])
        if found is not None:
            self._parts[bucket, key] = found
            self._heads[bucket] = head

    def heads_at(self, places: Sequence[tuple[int, int]]) -> dict[str, Head]:
        """The heads, by bucket, now that parts lie at these places: file and first byte."""
        blocks = {bucket: dict(head.blocks) for bucket, head in self._heads.items()}
        for (bucket, key), (segment, at) in zip(self._parts, places, strict=True):
            of = blocks[bucket][key]
            blocks[bucket][key] = Block(of.index, segment, at, of.stored, of.size, of.checksum)
        return {bucket: Head(head.index, head.head, blocks[bucket]) for bucket, head in self._heads.items()}

    def _newest(self, bucket: str) -> Head:
        return self._heads.get(bucket) or self._before.get(bucket) or Head(0, b"")
