"""Keys and values of a block store's index as bytes, and checksums that verify contents.

Knows: the encoding of names as keys that sort by bucket, checksums. Does not know: files, RocksDB.

The record of a head has a checksum, an index, the head, and the list of the bucket's blocks: for each, the
index with which it was written, its place, and a checksum of key, index and contents. So flipped bits,
misplaced blocks and outdated blocks are detected. The checksum also covers the head's key, so a record under
another key is rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from cotswold.files.checksum import crc32

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<IQ")
"""Checksum and index."""
_LENGTH = struct.Struct("<I")
_SHARD = struct.Struct(">I")
_INDEX = struct.Struct("<Q")
_HEAD, _END = b"h", b"\0"
NAME_BYTES_MAX = 512
HEADS = _HEAD, bytes([_HEAD[0] + 1])
"""Range of the keys of heads: first key, and end (exclusive)."""


class RecordError(ValueError):
    """Error: a record is not the one that was written under its key; the message says why."""


@dataclass(frozen=True, order=True)
class BlockKey:
    """A block within its bucket: shard ``shard`` of the vector ``vector``."""

    vector: str
    shard: int


@dataclass(frozen=True)
class BucketSnapshot:
    """A bucket as of ``index``: its head, and the blocks that changed since the last snapshot.

    Blocks without an entry are unchanged.
    """

    bucket: str
    index: int
    head: bytes
    blocks: Mapping[BlockKey, Buffer]

    @property
    def bytes(self) -> int:
        """Bytes of head and blocks."""
        return len(self.head) + sum(memoryview(each).nbytes for each in self.blocks.values())


@dataclass(frozen=True)
class StoredBlock:
    """Place of a block's contents."""

    index: int
    """Index with which it was written."""
    segment: int
    """Number of the file."""
    offset: int
    """Offset of its first byte in the file."""
    stored: int
    """Number of bytes in the file."""
    size: int
    """Number of bytes of the contents."""
    checksum: int
    """`checksum_of` the stored bytes."""

    @property
    def row(self) -> tuple[int, ...]:
        """All fields, in this order."""
        return self.index, self.segment, self.offset, self.stored, self.size, self.checksum


@dataclass(frozen=True)
class Head:
    """A bucket without the contents of its blocks."""

    index: int
    head: bytes
    blocks: Mapping[BlockKey, StoredBlock] = field(default_factory=dict)


@dataclass(frozen=True)
class Bucket:
    """A bucket with its blocks, as raw bytes."""

    index: int
    head: bytes
    blocks: Mapping[BlockKey, memoryview]


def head_key(bucket: str) -> bytes:
    """Return the key of a bucket's head; raises ValueError for a malformed name."""
    return _HEAD + _name(bucket)


def bucket_of(key: bytes) -> str:
    """Return the bucket whose head has this key; raises RecordError if there is none."""
    try:
        return key[len(_HEAD) :].decode()
    except UnicodeDecodeError as error:
        raise RecordError("a bucket without a name") from error


def block_key(bucket: str, block: BlockKey) -> bytes:
    """Return the key of a block; raises ValueError for malformed names or numbers."""
    if not 0 <= block.shard < 1 << 32:
        raise ValueError(f"shard must be 0 to 2^32 - 1, got {block.shard}")
    return b"".join((_name(bucket), _END, _name(block.vector), _END, _SHARD.pack(block.shard)))


def checksum_of(key: bytes, index: int, stored: Buffer) -> int:
    """Return the checksum of a block's stored bytes."""
    return crc32(stored, crc32(_INDEX.pack(index), crc32(key)))


def verify(key: bytes, block: StoredBlock, stored: bytes) -> None:
    """Raise RecordError if the bytes are not those stored as this block."""
    if checksum_of(key, block.index, stored) != block.checksum:
        raise RecordError("its checksum is wrong")


def head_record(key: bytes, head: Head) -> bytes:
    """Return the record of a head."""
    rows = [(key.vector, key.shard, *block.row) for key, block in sorted(head.blocks.items(), key=_by_name)]
    listed: bytes = msgpack.packb(rows)
    contents = b"".join((_LENGTH.pack(len(head.head)), head.head, listed))
    return _PREFIX.pack(checksum_of(key, head.index, contents), head.index) + contents


def _by_name(item: tuple[BlockKey, StoredBlock]) -> tuple[str, int]:
    return item[0].vector, item[0].shard


def head_of(key: bytes, record: bytes) -> Head:
    """Return the head in a record; raises RecordError if it is damaged."""
    if len(record) < _PREFIX.size:
        raise RecordError(f"it has {len(record)} bytes, fewer than any record")
    checksum, index = _PREFIX.unpack_from(record)
    contents = memoryview(record)[_PREFIX.size :]
    if checksum_of(key, index, contents) != checksum:
        raise RecordError("its checksum is wrong")
    # the contents can be trusted from here on
    (length,) = _LENGTH.unpack_from(contents)
    start = _LENGTH.size + length
    listed = msgpack.unpackb(contents[start:])
    blocks = {BlockKey(vector, shard): StoredBlock(*block) for vector, shard, *block in listed}
    return Head(index, bytes(contents[_LENGTH.size : start]), blocks)


def _name(name: str) -> bytes:
    encoded = name.encode()
    if not encoded or len(encoded) > NAME_BYTES_MAX or _END in encoded:
        raise ValueError(f"a name has 1 to {NAME_BYTES_MAX} bytes and no NUL: {name!r:.80}")
    return encoded
