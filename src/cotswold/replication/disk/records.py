"""Keys and values of a block store's index, as bytes, and what tells whether contents are what was written.

Knows: how names become keys that sort by bucket, checksums. Does not know: files, RocksDB.

A head's record is a checksum, an index, the head, and the list of the bucket's blocks: of each the index it
was written with, where it lies, and a checksum of key, index and contents. So a block whose bits have flipped
is found, and one that lies where another should, or is older than it should be. A checksum covers the head's
key too: a record that lies under another key does not pass.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from cotswold.files.checksum import crc32
from cotswold.replication.disk.corruption import RecordError

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<IQ")
"""Checksum and index."""
_LENGTH = struct.Struct("<I")
_SHARD = struct.Struct(">I")
_INDEX = struct.Struct("<Q")
_HEAD, _END = b"h", b"\0"
NAME_BYTES_MAX = 512
HEADS = _HEAD, bytes([_HEAD[0] + 1])
"""All keys of heads are from the first to before the second."""


@dataclass(frozen=True, order=True)
class BlockKey:
    """A block within its bucket: shard ``shard`` of the vector ``vector``."""

    vector: str
    shard: int


@dataclass(frozen=True)
class Snapshot:
    """A bucket as it is at ``index``: its head, and the blocks that have changed since the last one.

    The blocks that it does not name are as they were.
    """

    bucket: str
    index: int
    head: bytes
    blocks: Mapping[BlockKey, Buffer]

    @property
    def bytes(self) -> int:
        """Of head and blocks."""
        return len(self.head) + sum(memoryview(each).nbytes for each in self.blocks.values())


@dataclass(frozen=True)
class Block:
    """Where the contents of a block lie."""

    index: int
    """With which it was written."""
    segment: int
    """The number of the file."""
    at: int
    """Its first byte there."""
    stored: int
    """Its bytes there."""
    size: int
    """Its bytes, as they were given."""
    checksum: int
    """`checksum_of` what is stored."""

    @property
    def row(self) -> tuple[int, ...]:
        """All of it, in this order."""
        return self.index, self.segment, self.at, self.stored, self.size, self.checksum


@dataclass(frozen=True)
class Head:
    """A bucket without its blocks' contents."""

    index: int
    head: bytes
    blocks: Mapping[BlockKey, Block] = field(default_factory=dict)


@dataclass(frozen=True)
class Bucket:
    """A bucket with its blocks; raw bytes, as they were written."""

    index: int
    head: bytes
    blocks: Mapping[BlockKey, memoryview]


def head_key(bucket: str) -> bytes:
    """Where a bucket's head lies; raises ValueError for a name that cannot be one."""
    return _HEAD + _name(bucket)


def bucket_of(key: bytes) -> str:
    """Whose head lies there; raises RecordError where it is nobody's."""
    try:
        return key[len(_HEAD) :].decode()
    except UnicodeDecodeError as error:
        raise RecordError("a bucket without a name") from error


def block_key(bucket: str, block: BlockKey) -> bytes:
    """What a block is called; raises ValueError for names or numbers that cannot be one's."""
    if not 0 <= block.shard < 1 << 32:
        raise ValueError(f"a shard's number is from 0 to 2^32 - 1, not {block.shard}")
    return b"".join((_name(bucket), _END, _name(block.vector), _END, _SHARD.pack(block.shard)))


def checksum_of(key: bytes, index: int, stored: Buffer) -> int:
    """Of what is stored as the block called ``key``."""
    return crc32(stored, crc32(_INDEX.pack(index), crc32(key)))


def verify(key: bytes, block: Block, stored: bytes) -> None:
    """Raise RecordError for what is not what was stored as this block."""
    if checksum_of(key, block.index, stored) != block.checksum:
        raise RecordError("its checksum is wrong")


def head_record(key: bytes, head: Head) -> bytes:
    """What lies under a head's key."""
    rows = [(key.vector, key.shard, *block.row) for key, block in sorted(head.blocks.items(), key=_by_name)]
    listed: bytes = msgpack.packb(rows)
    contents = b"".join((_LENGTH.pack(len(head.head)), head.head, listed))
    return _PREFIX.pack(checksum_of(key, head.index, contents), head.index) + contents


def _by_name(item: tuple[BlockKey, Block]) -> tuple[str, int]:
    return item[0].vector, item[0].shard


def head_of(key: bytes, record: bytes) -> Head:
    """The head in a record; raises RecordError where there is none."""
    if len(record) < _PREFIX.size:
        raise RecordError(f"it has {len(record)} bytes, fewer than any record")
    checksum, index = _PREFIX.unpack_from(record)
    contents = memoryview(record)[_PREFIX.size :]
    if checksum_of(key, index, contents) != checksum:
        raise RecordError("its checksum is wrong")
    # what is in it can be trusted from here on
    (length,) = _LENGTH.unpack_from(contents)
    start = _LENGTH.size + length
    listed = msgpack.unpackb(contents[start:])
    blocks = {BlockKey(vector, shard): Block(*block) for vector, shard, *block in listed}
    return Head(index, bytes(contents[_LENGTH.size : start]), blocks)


def _name(name: str) -> bytes:
    encoded = name.encode()
    if not encoded or len(encoded) > NAME_BYTES_MAX or _END in encoded:
        raise ValueError(f"a name has 1 to {NAME_BYTES_MAX} bytes and no NUL: {name!r:.80}")
    return encoded
