"""Keys and values of a block store, as bytes.

Knows: how names become keys that sort by bucket, checksums. Does not know: files, RocksDB.

A block's record is a checksum, the index that it was written with, and its contents. A head's record is a
checksum, the index, the head, and the list of the bucket's blocks with the index of each: so a block that
is missing, or is an older one than it should be, is found as well as one whose bits have flipped. A checksum
covers the key too: a record that lies under another key does not pass.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from cotswold.cluster.blocks.damage import RecordError
from cotswold.files.checksum import crc32

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("<IQ")
"""Checksum and index."""
_LENGTH = struct.Struct("<I")
_SHARD = struct.Struct(">I")
_INDEX = struct.Struct("<Q")
_HEAD, _BLOCK, _END = b"h", b"b", b"\0"
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
class Head:
    """A bucket without its blocks."""

    index: int
    head: bytes
    blocks: Mapping[BlockKey, int] = field(default_factory=dict)
    """The index with which each block was written last."""


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
    """Where a block lies; raises ValueError for names or numbers that cannot be one's."""
    if not 0 <= block.shard < 1 << 32:
        raise ValueError(f"a shard's number is from 0 to 2^32 - 1, not {block.shard}")
    return b"".join((_BLOCK, _name(bucket), _END, _name(block.vector), _END, _SHARD.pack(block.shard)))


def blocks_of(bucket: str) -> tuple[bytes, bytes]:
    """All keys of a bucket's blocks are from the first to before the second."""
    start = _BLOCK + _name(bucket)
    return start + _END, start + bytes([_END[0] + 1])


def block_record(key: bytes, index: int, contents: Buffer) -> bytes:
    """What lies under a block's key."""
    raw = memoryview(contents).cast("B")
    return b"".join((_PREFIX.pack(_checksum(key, index, raw), index), raw))


def block_contents(key: bytes, record: bytes, index: int) -> memoryview:
    """The contents of a block that was written with ``index``; raises RecordError where it is not that."""
    found, contents = _verified(key, record)
    if found != index:
        raise RecordError(f"it is of index {found}, and should be of {index}")
    return contents


def head_record(key: bytes, head: Head) -> bytes:
    """What lies under a head's key."""
    listed: bytes = msgpack.packb([(key.vector, key.shard, at) for key, at in sorted(head.blocks.items())])
    return block_record(key, head.index, b"".join((_LENGTH.pack(len(head.head)), head.head, listed)))


def head_of(key: bytes, record: bytes) -> Head:
    """The head in a record; raises RecordError where there is none."""
    index, contents = _verified(key, record)
    (length,) = _LENGTH.unpack_from(contents)
    start = _LENGTH.size + length
    listed = msgpack.unpackb(contents[start:])
    blocks = {BlockKey(vector, shard): at for vector, shard, at in listed}
    return Head(index, bytes(contents[_LENGTH.size : start]), blocks)


def _verified(key: bytes, record: bytes) -> tuple[int, memoryview]:
    """Index and contents of a record whose checksum is right; what is in it can be trusted from then on."""
    if len(record) < _PREFIX.size:
        raise RecordError(f"it has {len(record)} bytes, fewer than any record")
    checksum, index = _PREFIX.unpack_from(record)
    contents = memoryview(record)[_PREFIX.size :]
    if _checksum(key, index, contents) != checksum:
        raise RecordError("its checksum is wrong")
    return index, contents


def _checksum(key: bytes, index: int, contents: memoryview) -> int:
    return crc32(contents, crc32(_INDEX.pack(index), crc32(key)))


def _name(name: str) -> bytes:
    encoded = name.encode()
    if not encoded or len(encoded) > NAME_BYTES_MAX or _END in encoded:
        raise ValueError(f"a name has 1 to {NAME_BYTES_MAX} bytes and no NUL: {name!r:.80}")
    return encoded
