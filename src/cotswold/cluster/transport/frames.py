"""Messages as frames: a header in msgpack and raw buffers.

Knows: msgpack, how long a frame may be. Does not know: sockets, who sends. Nothing is ever unpickled.

Frames of a message: its kind (one byte), then msgpack. A message of the user's (`DATA`) has the pair (header,
sizes of the buffers), and the bytes of the buffers in frames of `FRAME_BYTES` at most; or, where these lie in
shared memory, the triple (header, sizes, `Loan`) and no further frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgpack

Header: TypeAlias = Mapping[str, object]
Packed: TypeAlias = bytes
"""A header in msgpack."""
Buffer: TypeAlias = "bytes | bytearray | memoryview"

DATA, HELLO, WELCOME, GONE, MEMORY = b"D", b"H", b"W", b"G", b"M"
"""Kinds of messages: the user's; who calls; the answer; a peer is dropped; shared memory given back."""
FRAME_BYTES = 16 << 20
"""Of a frame; ZeroMQ hangs up on whoever announces a longer one."""
HEADER_BYTES = 1 << 20
"""Of a header, at most."""
BUFFERS = 1 << 16
"""Of a message, at most."""
ALIGNMENT = 64
_ARRAY = [bytes([0x90 | length]) for length in range(4)]
"""How msgpack begins an array of so many values."""


class MalformedError(Exception):
    """Bytes that no endpoint of ours sends; ``oversized`` where they are too many."""

    def __init__(self, why: str, *, oversized: bool = False) -> None:
        super().__init__(why)
        self.oversized = oversized


@dataclass(frozen=True)
class Message:
    """What a peer sent. Its buffers belong to the receiver, which may write into those of shared memory."""

    sender: str
    header: Header
    buffers: Sequence[memoryview] = field(default=(), repr=False)


@dataclass(frozen=True)
class Lost:
    """A peer that ended, or was dropped; nothing more comes from it."""

    peer: str
    why: str


@dataclass(frozen=True)
class Ready:
    """A descriptor that is watched can be read."""

    descriptor: int


@dataclass(frozen=True)
class Loan:
    """A block of shared memory in which buffers lie."""

    number: int
    descriptor: int
    block_bytes: int


def pack(value: object) -> bytes:
    """The msgpack of plain values; raises TypeError for others, ValueError where it is too long."""
    return _bounded(msgpack.packb(value))


def pack_data(header: Header | Packed, *more: list[int]) -> bytes:
    """The array of a header and lists of numbers; raises as `pack` does."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return _bounded(b"".join((_ARRAY[1 + len(more)], packed, *map(msgpack.packb, more))))


def _bounded(packed: bytes) -> bytes:
    if len(packed) > HEADER_BYTES:
        raise ValueError(f"a header of {len(packed)} bytes is too long; put what is long into buffers")
    return packed


def unpack(data: bytes) -> object:
    """Plain values; raises MalformedError."""
    if len(data) > HEADER_BYTES:
        raise MalformedError("a header is too long", oversized=True)
    try:
        value: object = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedError("no msgpack") from error
    return value


def flat(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer; raises TypeError or BufferError for another."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise BufferError("a buffer that is sent must be contiguous")
    return view.cast("B")


def pieces(buffer: memoryview) -> list[memoryview]:
    """The frames of a buffer; none for an empty one."""
    return [buffer[at : at + FRAME_BYTES] for at in range(0, buffer.nbytes, FRAME_BYTES)]


def opened(
    packed: bytes, frames: Sequence[memoryview], bytes_most: int
) -> tuple[Header, list[int], Loan | None]:
    """Header, sizes of the buffers in the frames behind it, where else they lie; raises MalformedError."""
    said = unpack(packed)
    if not isinstance(said, list) or len(said) not in (2, 3) or not isinstance(said[0], dict):
        raise MalformedError("no header and sizes")
    header, sizes = said[0], said[1]
    if not isinstance(sizes, list) or len(sizes) > BUFFERS or not all(_is_count(one) for one in sizes):
        raise MalformedError("no sizes of buffers")
    if sum(sizes) > bytes_most:
        raise MalformedError(f"more than {bytes_most} bytes", oversized=True)
    loan = None
    if len(said) == 3:
        where = said[2]
        if not isinstance(where, list) or len(where) != 3 or not all(_is_count(one) for one in where):
            raise MalformedError("no block of shared memory")
        loan = Loan(*where)
        if not 0 < loan.block_bytes <= 2 * bytes_most + (1 << 20) or frames:
            raise MalformedError("no block of shared memory")
    return header, sizes, loan


def joined(sizes: Sequence[int], frames: Sequence[memoryview]) -> list[memoryview]:
    """The buffers whose bytes came in these frames; raises MalformedError."""
    buffers: list[memoryview] = []
    at = 0
    for size in sizes:
        count = -(-size // FRAME_BYTES)
        mine = frames[at : at + count]
        if sum(frame.nbytes for frame in mine) != size:
            raise MalformedError("frames do not make up the buffers")
        buffers.append(mine[0] if count == 1 else memoryview(bytearray().join(mine)))
        at += count
    if at != len(frames):
        raise MalformedError("more frames than buffers")
    return buffers


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where buffers begin that lie in one block, each aligned, and the bytes of all.

    >>> places([10, 0, 100])
    ([0, 64, 64], 164)
    """
    starts, end = [], 0
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + size
    return starts, end


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
