"""Messages as frames: a header in msgpack and raw buffers.

Knows: msgpack, how long a frame may be. Does not know: sockets, who sends. Nothing is ever unpickled.

The first frame of a message: its kind and the version of the protocol (a byte each), then msgpack. A message
of the user's (`DATA`) has the pair (header, sizes of the buffers), and the bytes of the buffers in frames of
`FRAME_BYTES` at most, several short ones in one (`runs`); or, where these lie in shared memory, the triple
(header, sizes, `Loan`) and no further frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import msgpack

Header: TypeAlias = Mapping[str, object]
Packed: TypeAlias = bytes
"""A header in msgpack."""
Buffer: TypeAlias = "bytes | bytearray | memoryview"

DATA, HELLO, WELCOME, GONE, MEMORY, REFUSAL = b"D", b"H", b"W", b"G", b"M", b"R"
"""Kinds of messages: the user's; who calls; the answer; a peer is dropped; shared memory given back; a
version is not spoken."""
FRAME_BYTES = 16 << 20
"""Of a frame; ZeroMQ hangs up on whoever announces a longer one."""
GATHERED_BYTES = 1 << 18
"""Neighbouring buffers of no more bytes together share a frame: a frame costs as much as copying 100 KB, and
so many bytes are copied within the second cache."""
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


class End(Enum):
    """How it ended with a peer."""

    OTHERWISE = "otherwise"
    """It was connected, or answered something else: that is said in words."""
    ABSENT = "absent"
    """Nobody takes calls at its address."""
    SILENT = "silent"
    """Nothing was heard from its address for long."""
    REFUSED = "refused"
    """Whoever answers at its address does not know the token, or uses it no more."""
    STRANGER = "stranger"
    """Whoever answers at its address knows the token, and has another name."""


@dataclass(frozen=True)
class Lost:
    """A peer that ended, or was dropped; nothing more comes from it."""

    peer: str
    why: str
    end: End = End.OTHERWISE


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


def head(kind: bytes, version: int) -> bytes:
    """How a message of a kind begins."""
    return kind + bytes((version,))


def parted(first: bytes | memoryview) -> tuple[bytes, int, memoryview]:
    """Kind and version of a message, and what follows these in its first frame; raises MalformedError."""
    if len(first) < 2:
        raise MalformedError("no kind and version")
    view = memoryview(first)
    return bytes(view[:1]), view[1], view[2:]


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


def unpack(data: bytes | memoryview) -> object:
    """Plain values; raises MalformedError."""
    if len(data) > HEADER_BYTES:
        raise MalformedError("a header is too long", oversized=True)
    try:
        value: object = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedError("no msgpack") from error
    return value


def flat(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer; raises TypeError or BufferError for another."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise BufferError("a buffer that is sent must be contiguous")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Which buffers travel together, from start to before stop.

    >>> runs([1 << 10, 1 << 17, 1 << 20, 1 << 10])
    [(0, 2), (2, 3), (3, 4)]
    """
    found, start, held = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and held + size > GATHERED_BYTES:
            found.append((start, place))
            start, held = place, 0
        held += size
    return [*found, (start, len(sizes))] if sizes else []


def framed(buffers: Sequence[memoryview], sizes: Sequence[int]) -> list[bytes | memoryview]:
    """The frames of buffers; those of a long one are parts of it, not copied."""
    frames: list[bytes | memoryview] = []
    for start, stop in runs(sizes):
        if stop - start > 1:
            if whole := b"".join(buffers[start:stop]):
                frames.append(whole)
        else:
            frames += [buffers[start][at : at + FRAME_BYTES] for at in range(0, sizes[start], FRAME_BYTES)]
    return frames


def opened(
    packed: bytes | memoryview, frames: Sequence[memoryview], bytes_most: int
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
    for start, stop in runs(sizes):
        size = sum(sizes[start:stop])
        count = -(-size // FRAME_BYTES)
        mine = frames[at : at + count]
        if sum(frame.nbytes for frame in mine) != size:
            raise MalformedError("frames do not make up the buffers")
        whole = mine[0] if count == 1 else memoryview(bytearray().join(mine))
        end = 0
        for each in sizes[start:stop]:
            buffers.append(whole[end : end + each])
            end += each
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
