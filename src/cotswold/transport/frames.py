"""Messages as frames: a header in msgpack and raw buffers.

Knows: msgpack, the bounds on frames. Does not know: sockets, senders. Nothing is ever unpickled.

The first frame of a message holds its kind and the protocol version (a byte each), then msgpack. In a user's
message (`DATA`) the msgpack is the pair (header, sizes of the buffers), and the bytes of the buffers follow
in frames of up to `FRAME_BYTES`, with short buffers joined into one frame (`runs`). If the buffers are in
shared memory, the msgpack is the triple (header, sizes, `SharedBlock`), and no frames follow.
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
"""Kinds of messages: a user's message; a caller's hello; its answer; a peer is dropped; shared memory is
given back; the protocol version is not supported."""
REDUCTION_KEY = "reduction"
"""Header key of a reduction message; its value is the reduction's number."""
FRAME_BYTES = 16 << 20
"""Length of a frame, at most; ZeroMQ disconnects a peer that announces a longer one."""
GATHERED_BYTES = 1 << 18
"""Adjacent buffers up to this total share a frame. A frame costs as much as copying 100 KB, and this many
bytes are copied within the second-level cache."""
HEADER_BYTES = 1 << 20
"""Length of a header, at most."""
BUFFERS = 1 << 16
"""Number of buffers of a message, at most."""
ALIGNMENT = 64
_ARRAY = [bytes([0x90 | length]) for length in range(4)]
"""First byte of a msgpack array, by its length."""


class MalformedFrameError(Exception):
    """Bytes that no endpoint of ours sends; ``oversized`` if they are too many."""

    def __init__(self, why: str, *, oversized: bool = False) -> None:
        super().__init__(why)
        self.oversized = oversized


@dataclass(frozen=True)
class Message:
    """A message from a peer. Its buffers belong to the receiver, which may write into those of shared
    memory."""

    sender: str
    """Name of the peer."""
    header: Header
    buffers: Sequence[memoryview] = field(default=(), repr=False)


class LossCause(Enum):
    """Reason why a connection to a peer ended."""

    OTHERWISE = "otherwise"
    """Any other reason; see `Lost.why`."""
    ABSENT = "absent"
    """No process listens at its address."""
    SILENT = "silent"
    """Its address has not answered for long."""
    REFUSED = "refused"
    """The process at its address does not know the token, or no longer uses it."""
    OLD_TOKEN = "old token"
    """Its connection was made with a token that has left this process's ring."""
    UNAUTHENTICATED = "stranger"
    """The process at its address knows the token, but has another name."""


@dataclass(frozen=True)
class Lost:
    """A peer that exited or was dropped; no more messages come from it."""

    peer: str
    why: str
    """The reason, in words with "it" for the peer."""
    end: LossCause = LossCause.OTHERWISE

    @property
    def by_token(self) -> bool:
        """True if the two processes have no token in common, as far as known."""
        return self.end in (LossCause.REFUSED, LossCause.OLD_TOKEN)


@dataclass(frozen=True)
class Ready:
    """A watched descriptor is readable."""

    descriptor: int


@dataclass(frozen=True)
class SharedBlock:
    """A block of shared memory that holds buffers."""

    number: int
    descriptor: int
    block_bytes: int


def head(kind: bytes, version: int) -> bytes:
    """The first two bytes of a message."""
    return kind + bytes((version,))


def split_head(first: bytes | memoryview) -> tuple[bytes, int, memoryview]:
    """Split the first frame into kind, version and the rest; raise MalformedFrameError."""
    if len(first) < 2:
        raise MalformedFrameError("no kind and version")
    view = memoryview(first)
    return bytes(view[:1]), view[1], view[2:]


def pack(value: object) -> bytes:
    """Encode plain values as msgpack; raise TypeError for other values, ValueError if too long."""
    return _bounded(msgpack.packb(value))


def pack_data(header: Header | Packed, *more: list[int]) -> bytes:
    """Encode an array of a header and lists of numbers; raises as `pack` does."""
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return _bounded(b"".join((_ARRAY[1 + len(more)], packed, *map(msgpack.packb, more))))


def _bounded(packed: bytes) -> bytes:
    if len(packed) > HEADER_BYTES:
        raise ValueError(f"a header of {len(packed)} bytes is too long; send long values as buffers")
    return packed


def unpack(data: bytes | memoryview) -> object:
    """Decode plain values; raise MalformedFrameError."""
    if len(data) > HEADER_BYTES:
        raise MalformedFrameError("the header is too long", oversized=True)
    try:
        value: object = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedFrameError("not msgpack") from error
    return value


def as_bytes(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer; raise TypeError or BufferError for others."""
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")
    if not view.c_contiguous:
        raise BufferError("a buffer must be contiguous to be sent")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def frame_runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of buffers that share a frame, as (start, stop).

    >>> frame_runs([1 << 10, 1 << 17, 1 << 20, 1 << 10])
    [(0, 2), (2, 3), (3, 4)]
    """
    found, start, held = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and held + size > GATHERED_BYTES:
            found.append((start, place))
            start, held = place, 0
        held += size
    return [*found, (start, len(sizes))] if sizes else []


def to_frames(buffers: Sequence[memoryview], sizes: Sequence[int]) -> list[bytes | memoryview]:
    """The frames of buffers. A long buffer becomes several frames, without copies."""
    frames: list[bytes | memoryview] = []
    for start, stop in frame_runs(sizes):
        if stop - start > 1:
            if whole := b"".join(buffers[start:stop]):
                frames.append(whole)
        else:
            frames += [buffers[start][at : at + FRAME_BYTES] for at in range(0, sizes[start], FRAME_BYTES)]
    return frames


def decode_buffers(
    packed: bytes | memoryview, frames: Sequence[memoryview], bytes_most: int
) -> tuple[Header, list[int], SharedBlock | None]:
    """Return the header, the sizes of the buffers, and the shared memory block; raise MalformedFrameError."""
    said = unpack(packed)
    if not isinstance(said, list) or len(said) not in (2, 3) or not isinstance(said[0], dict):
        raise MalformedFrameError("no header and sizes")
    header, sizes = said[0], said[1]
    if not isinstance(sizes, list) or len(sizes) > BUFFERS or not all(_is_count(one) for one in sizes):
        raise MalformedFrameError("no sizes of buffers")
    if sum(sizes) > bytes_most:
        raise MalformedFrameError(f"more than {bytes_most} bytes", oversized=True)
    loan = None
    if len(said) == 3:
        where = said[2]
        if not isinstance(where, list) or len(where) != 3 or not all(_is_count(one) for one in where):
            raise MalformedFrameError("no block of shared memory")
        loan = SharedBlock(*where)
        if not 0 < loan.block_bytes <= 2 * bytes_most + (1 << 20) or frames:
            raise MalformedFrameError("no block of shared memory")
    return header, sizes, loan


def join_frames(sizes: Sequence[int], frames: Sequence[memoryview]) -> list[memoryview]:
    """The buffers that these frames contain; raise MalformedFrameError."""
    buffers: list[memoryview] = []
    at = 0
    for start, stop in frame_runs(sizes):
        size = sum(sizes[start:stop])
        count = -(-size // FRAME_BYTES)
        mine = frames[at : at + count]
        if sum(frame.nbytes for frame in mine) != size:
            raise MalformedFrameError("frames do not make up the buffers")
        whole = mine[0] if count == 1 else memoryview(bytearray().join(mine))
        end = 0
        for each in sizes[start:stop]:
            buffers.append(whole[end : end + each])
            end += each
        at += count
    if at != len(frames):
        raise MalformedFrameError("more frames than buffers")
    return buffers


def block_offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets of buffers in one block, and the total length in bytes.

    >>> block_offsets([10, 0, 100])
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
