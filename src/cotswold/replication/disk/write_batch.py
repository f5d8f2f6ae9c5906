"""One batch of writes to a block store: contents to append, and the heads that will name them.

Knows: snapshots, heads, the stored form of a block. Does not know: files, the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotswold.replication.disk.compression import compress
from cotswold.replication.disk.records import (
    BlockKey,
    BucketSnapshot,
    Buffer,
    Head,
    StoredBlock,
    block_key,
    checksum_of,
    head_key,
)


class WriteBatch:
    """A batch; its input must not change until it is written."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        """``heads``: the heads in the index."""
        self._old_heads = heads
        self._heads: dict[str, Head] = {}
        self._parts: dict[tuple[str, BlockKey], Buffer] = {}
        """Contents to append, by bucket and block."""

    @property
    def parts(self) -> Sequence[Buffer]:
        """Contents to append."""
        return [*self._parts.values()]

    @property
    def size(self) -> int:
        """Bytes to append."""
        return sum(map(len, self._parts.values()))

    def add(self, snapshot: BucketSnapshot) -> None:
        """Add a snapshot; it follows those added before. Raises ValueError for malformed names."""
        bucket, index = snapshot.bucket, snapshot.index
        head_key(bucket)
        blocks = dict(self._newest(bucket).blocks)
        for key, contents in snapshot.blocks.items():
            raw = memoryview(contents).cast("B")
            stored = compress(raw)
            checksum = checksum_of(block_key(bucket, key), index, stored)
            blocks[key] = StoredBlock(index, 0, 0, len(stored), raw.nbytes, checksum)
            self._parts[bucket, key] = stored
        self._heads[bucket] = Head(index, bytes(snapshot.head), blocks)

    def move(self, bucket: str, key: BlockKey, stored: Callable[[StoredBlock], bytes | None]) -> None:
        """Copy a block unchanged, unless a newer one is in the batch. ``stored`` reads it; a block that it
        cannot read stays in place."""
        if (bucket, key) in self._parts:
            return
        head = self._newest(bucket)
        found = stored(head.blocks[key])
        if found is not None:
            self._parts[bucket, key] = found
            self._heads[bucket] = head

    def new_heads(self, offsets: Sequence[tuple[int, int]]) -> dict[str, Head]:
        """Return the heads by bucket, given the places of the parts: file and first byte."""
        blocks = {bucket: dict(head.blocks) for bucket, head in self._heads.items()}
        for (bucket, key), (segment, at) in zip(self._parts, offsets, strict=True):
            of = blocks[bucket][key]
            blocks[bucket][key] = StoredBlock(of.index, segment, at, of.stored, of.size, of.checksum)
        return {bucket: Head(head.index, head.head, blocks[bucket]) for bucket, head in self._heads.items()}

    def _newest(self, bucket: str) -> Head:
        return self._heads.get(bucket) or self._old_heads.get(bucket) or Head(0, b"")
