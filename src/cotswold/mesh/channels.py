"""Messages between ranks of one host, through memory that both have mapped.

Knows: memory without a name, the sockets that tell of it, which ranks are near. Does not know: maps, plans,
how ranks of a host find each other (`listener`).

A sender packs a message straight into memory that its receiver has mapped as well, and says so through a
Unix socket; the receiver unpacks it from there and gives the memory back. So every value is copied twice,
while a message over TCP is packed, copied into the kernel, copied out of it and unpacked, with threads of
its own. The memory is nobody's file: it ends with the processes that have it, however they end. Linux only;
elsewhere, and to and from a rank with ``COTSWOLD_SHARED_MEMORY=0``, messages go through Gloo.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.mesh.listener import Listener, call

SWITCH = "COTSWOLD_SHARED_MEMORY"
AHEAD = 4
"""Messages of finished exchanges that a receiver may be behind by before the sender waits for it."""
LEAST_BYTES = 1 << 16
"""The least memory of a message; there are blocks of this and of every power of two above."""
_HEADER = struct.Struct("=qqqq")
"""Tag of a message (or `_BACK`), number of the block it lies in, bytes of the block, bytes of the message."""
_BACK = -1
"""What stands for the tag when a block is given back."""
_DESCRIPTOR = struct.Struct("=i")
Gather = Callable[[Tensor], list[Tensor]]
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Sockets of this process's channels."""
_NAMESPACES = (Path("/proc/self/ns/net"), Path("/proc/self/ns/user"))
_FIELD_BYTES = 64


@dataclass(frozen=True, eq=False)
class _Block:
    """Memory for one message, mapped by sender and receiver."""

    number: int
    bytes: Tensor

    @classmethod
    def mapped(cls, number: int, descriptor: int, size: int) -> _Block:
        """The memory behind a descriptor."""
        # by its path, for Python's own mmap keeps a descriptor open for each
        path = f"/proc/self/fd/{descriptor}"
        return cls(number, torch.from_file(path, shared=True, size=size, dtype=torch.uint8))

    def values(self, like: Tensor) -> Tensor:
        """As many numbers as ``like`` has, of its type and shape."""
        count = like.numel() * like.element_size()
        return self.bytes[:count].view(like.dtype).view(like.shape)


class Channel:
    """Messages to and from one rank of this host, both ways. ``peer`` names it in errors.

    A tag stands for one message each way. Its methods raise ConnectionResetError where the other has ended,
    TimeoutError where it says or hears nothing for too long, GeometryError where it sends another size than
    is received.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._connection, self._peer = connection, peer
        weakref.finalize(self, connection.close)
        _OPEN.add(connection)
        self._free: dict[int, list[_Block]] = {}
        self._lent: dict[int, tuple[_Block, int]] = {}
        """Blocks that the other has not given back, and the tag of what lies in each, by number."""
        self._open: set[int] = set()
        """Tags of messages that are not given back."""
        self._overdue: set[int] = set()
        """Those of them whose exchange is finished here, so that the receiver may only be behind."""
        self._theirs: dict[int, _Block] = {}
        self._arrived: dict[int, tuple[_Block, int]] = {}
        self._made = 0

    def send(self, tag: int, values: Tensor) -> None:
        """Pack ``values``, a view of any strides, for whoever receives ``tag``; to be settled later."""
        while self._hear(socket.MSG_DONTWAIT):
            pass
        count = values.numel() * values.element_size()
        size = max(LEAST_BYTES, 1 << (count - 1).bit_length())
        free = self._free.setdefault(size, [])
        block, descriptors = (free.pop(), []) if free else self._new(size)
        try:
            block.values(values).copy_(values)
            self._lent[block.number] = block, tag
            self._open.add(tag)
            self._tell(tag, block.number, size, count, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def settle(self, tag: int) -> None:
        """The exchange of a message is finished here; waits while the receiver is too far behind."""
        if tag in self._open:
            self._overdue.add(tag)
        while len(self._overdue) > AHEAD:
            self._hear()

    def receive(self, tag: int, like: Tensor) -> Tensor:
        """The values of a message, shaped as ``like``, once it has come; to be read until it is released."""
        while tag not in self._arrived:
            self._hear()
        block, count = self._arrived[tag]
        wanted = like.numel() * like.element_size()
        if count != wanted:
            raise GeometryError(
                f"{self._peer} sent {count} bytes where {wanted} were expected; "
                "every rank must have as many images, of the same type"
            )
        return block.values(like)

    def release(self, tag: int) -> None:
        """Give the memory of a message back, whose values nobody reads any more."""
        block, _ = self._arrived.pop(tag)
        with suppress(ConnectionResetError):  # the sender has ended, and needs it no more
            self._tell(_BACK, block.number, 0, 0)

    def _new(self, size: int) -> tuple[_Block, list[int]]:
        descriptor = os.memfd_create("cotswold message")
        try:
            os.ftruncate(descriptor, size)
            block = _Block.mapped(self._made, descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        return block, [descriptor]

    def _tell(self, tag: int, number: int, size: int, count: int, descriptors: Sequence[int] = ()) -> None:
        header = _HEADER.pack(tag, number, size, count)
        try:
            if descriptors:
                socket.send_fds(self._connection, [header], descriptors)
            else:
                self._connection.send(header)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error
        except BlockingIOError as error:
            raise self._late("heard nothing") from error
        except OSError as error:
            raise _without(error) from error

    def _hear(self, flags: int = 0) -> bool:
        """Take in one thing that the other says; False if it has said nothing (with ``MSG_DONTWAIT``)."""
        try:
            header, descriptors = _heard(self._connection, flags)
        except BlockingIOError as error:
            if flags:
                return False
            raise self._late("sent nothing") from error
        except ConnectionResetError:  # it left something unread; what it said before can still be heard
            return True
        if not header:
            if flags:
                return False
            raise self._lost()
        tag, number, size, count = _HEADER.unpack(header)
        if tag == _BACK:
            block, sent = self._lent.pop(number)
            self._free[block.bytes.numel()].append(block)
            self._open.discard(sent)
            self._overdue.discard(sent)
            return True
        for descriptor in descriptors:
            try:
                self._theirs[number] = _Block.mapped(number, descriptor, size)
            finally:
                os.close(descriptor)
        self._arrived[tag] = self._theirs[number], count
        return True

    def _lost(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer}")

    def _late(self, what: str) -> TimeoutError:
        return TimeoutError(f"no message passed: {self._peer} {what} within the timeout of its group")


def _close_in_child() -> None:
    """A forked child is no rank: while it kept sockets open, nobody would hear that its parent has ended."""
    for connection in list(_OPEN):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _without(error: OSError) -> OSError:
    """The same error, with a remedy."""
    return OSError(error.errno, f"{error.strerror}; raise ulimit -n, or set {SWITCH}=0")


def _heard(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """A header and the descriptors beside it (Python's ``recv_fds`` drops flags)."""
    header, beside, how, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    if how & socket.MSG_CTRUNC:
        raise _without(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in beside]


def channels_of(
    gather: Gather, timeout: timedelta | None, members: Sequence[int], rank: int
) -> dict[int, Channel]:
    """Channels from member ``rank`` of a group to those on this host, by rank; all members call this.

    ``gather`` gives what every member has of one shape, ``members`` are their ranks in the job, which errors
    name. Raises TimeoutError where one does not come within ``timeout``, ConnectionResetError where one is
    gone.
    """
    here = _place()
    with closing(Listener(len(members))) if here else nullcontext() as listener:
        mine = _Told(here, *(() if listener is None else (listener.address, listener.secret)))
        told = [_Told.unpacked(each) for each in gather(mine.packed())]
        if listener is None:
            return {}
        seconds = max(1, int((dist.default_pg_timeout if timeout is None else timeout).total_seconds()))
        near = {other: f"rank {members[other]}" for other, each in enumerate(told) if each.place == here}
        near.pop(rank)
        calls = {other: told[other] for other in near if other < rank}
        found = {
            other: call(each.address, each.secret, rank, near[other], seconds)
            for other, each in calls.items()
        }
        found |= listener.answered({other: name for other, name in near.items() if other > rank}, seconds)
    for connection in found.values():
        connection.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))
    return {other: Channel(found[other], near[other]) for other in sorted(found)}


@dataclass(frozen=True)
class _Told:
    """What a member tells all others: where it is, where it listens, what callers must know."""

    place: bytes
    address: bytes = b""
    secret: bytes = b""

    def packed(self) -> Tensor:
        """Bytes, as many for every member."""
        both = b"".join(one.ljust(_FIELD_BYTES, b"\0") for one in (self.place, self.address, self.secret))
        return torch.frombuffer(bytearray(both), dtype=torch.uint8)

    @classmethod
    def unpacked(cls, told: Tensor) -> _Told:
        """What was packed; nothing that arrives is unpickled."""
        text = bytes(told.tolist())
        return cls(*(text[at : at + _FIELD_BYTES].rstrip(b"\0") for at in range(0, len(text), _FIELD_BYTES)))


def _place() -> bytes:
    """Where this process is: ranks of one place can map each other's memory. Nothing where that cannot be."""
    if os.environ.get(SWITCH) == "0" or not hasattr(os, "memfd_create"):
        return b""
    try:
        os.close(os.memfd_create("cotswold message"))  # which a sandbox may forbid
        # network namespaces are hosts of their own, as the addresses of their sockets are
        spaces = [str(path.readlink()) for path in _NAMESPACES]
        words = " ".join([_BOOT.read_text().strip(), *spaces, str(os.geteuid())])
    except OSError:
        return b""
    return hashlib.sha256(words.encode()).hexdigest().encode()
