"""Messages between ranks of one host, through memory that both have mapped.

Knows: memory without a name, the sockets that tell of it, which ranks are near. Does not know: maps, plans.

A sender packs a message straight into memory that its receiver has mapped as well, and says so through a
Unix socket; the receiver unpacks it from there and gives the memory back. So every value is copied twice,
while a message over TCP is packed, copied into the kernel, copied out of it and unpacked, with threads of
its own. The memory is nobody's file: it ends with the processes that have it, however they end. Linux only;
elsewhere, and with ``COTSWOLD_SHARED_MEMORY=0`` on any rank, ranks of one host speak through Gloo, as others
do.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SWITCH = "COTSWOLD_SHARED_MEMORY"
AHEAD = 16
"""Messages of finished exchanges that a receiver may be behind by before the sender waits for it."""
LEAST_BYTES = 1 << 16
"""The least memory of a message; there are blocks of this and of every power of two above."""
_HEADER = struct.Struct("=qqq")
"""Tag of a message (or `_BACK`), number of the block it lies in, bytes of the block."""
_BACK = -1
"""What stands for the tag when a block is given back."""
_DESCRIPTOR = struct.Struct("=i")
_RANK = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group at the other end of a socket."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


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
    """Messages to and from one rank of this host, both ways. ``peer`` names it in errors."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._connection, self._peer = connection, peer
        weakref.finalize(self, connection.close)
        self._free: dict[int, list[_Block]] = {}
        self._lent: dict[int, _Block] = {}
        self._overdue: set[int] = set()
        """Lent blocks whose exchange is finished here, so that the receiver may only be behind."""
        self._theirs: dict[int, _Block] = {}
        self._arrived: dict[int, _Block] = {}
        self._made = 0

    def send(self, tag: int, values: Tensor) -> int:
        """Pack ``values``, a view of any strides, for whoever receives ``tag``; the number to `settle`."""
        while self._hear(socket.MSG_DONTWAIT):
            pass
        count = values.numel() * values.element_size()
        size = max(LEAST_BYTES, 1 << (count - 1).bit_length())
        free = self._free.setdefault(size, [])
        block, descriptors = (free.pop(), []) if free else self._new(size)
        block.values(values).copy_(values)
        self._lent[block.number] = block
        try:
            self._tell(tag, block.number, size, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return block.number

    def settle(self, number: int) -> None:
        """The exchange of a message is finished here; waits while the receiver is too far behind."""
        if number in self._lent:
            self._overdue.add(number)
        while len(self._overdue) > AHEAD:
            self._hear()

    def receive(self, tag: int, like: Tensor) -> Tensor:
        """The values of a message, shaped as ``like``, once it has come; to be read until it is released."""
        while tag not in self._arrived:
            self._hear()
        return self._arrived[tag].values(like)

    def release(self, tag: int) -> None:
        """Give the memory of a message back, whose values nobody reads any more."""
        number = self._arrived.pop(tag).number
        with suppress(BrokenPipeError, ConnectionResetError):  # the sender has ended, and needs it no more
            self._tell(_BACK, number, 0)

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

    def _tell(self, tag: int, number: int, size: int, descriptors: Sequence[int] = ()) -> None:
        header = _HEADER.pack(tag, number, size)
        try:
            if descriptors:
                socket.send_fds(self._connection, [header], descriptors)
            else:
                self._connection.send(header)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error

    def _hear(self, flags: int = 0) -> bool:
        """Take in one thing that the other says; False if it has said nothing (with ``MSG_DONTWAIT``)."""
        try:
            header, descriptors = _heard(self._connection, flags)
        except BlockingIOError:
            if flags:
                return False
            raise TimeoutError(f"no message came from {self._peer} within the timeout of its group") from None
        except ConnectionResetError:  # it left something unread; what it said before can still be heard
            return True
        if not header:
            if flags:
                return False
            raise self._lost()
        tag, number, size = _HEADER.unpack(header)
        if tag == _BACK:
            block = self._lent.pop(number)
            self._free[block.bytes.numel()].append(block)
            self._overdue.discard(number)
            return True
        for descriptor in descriptors:
            self._theirs[number] = _Block.mapped(number, descriptor, size)
            os.close(descriptor)
        self._arrived[tag] = self._theirs[number]
        return True

    def _lost(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer}")


def _heard(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """A header and the descriptors beside it (Python's ``recv_fds`` drops flags)."""
    header, beside, _, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in beside]


def channels_of(group: dist.ProcessGroup | None, rank: int, size: int) -> dict[int, Channel]:
    """Channels to the ranks of a group that are on this host, by rank; all ranks of the group call this."""
    here, listener, address = _place(), None, b""
    if here is not None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = b"\0cotswold-" + secrets.token_hex(8).encode()  # without a file, gone with the socket
        listener.bind(address)
        listener.listen(size)
    told: list[Any] = [None] * size
    dist.all_gather_object(told, (here, address), group=group)
    if here is None or listener is None:
        return {}
    patience = _patience(group)
    with listener:
        near = [other for other, (place, _) in enumerate(told) if place == here and other != rank]
        found = {other: _called(told[other][1], rank) for other in near if other < rank}
        listener.settimeout(patience.total_seconds())
        while len(found) < len(near):
            other, connection = _answered(listener)
            if other is not None:
                found[other] = connection
    for connection in found.values():
        connection.settimeout(None)
        seconds = struct.pack("@ll", max(1, int(patience.total_seconds())), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    return {other: Channel(connection, f"rank {other}") for other, connection in sorted(found.items())}


def _place() -> str | None:
    """Where this process is: ranks of one place can map each other's memory. None where that cannot be."""
    if os.environ.get(SWITCH) == "0" or not hasattr(os, "memfd_create"):
        return None
    try:
        # containers and network namespaces are hosts of their own, as their sockets are
        return f"{_BOOT.read_text().strip()} {_NETWORK.readlink()} {os.geteuid()}"
    except OSError:
        return None


def _called(address: bytes, rank: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    connection.send(_RANK.pack(rank))
    return connection


def _answered(listener: socket.socket) -> tuple[int | None, socket.socket]:
    """Who called, and its connection; nobody, if it is another user's process."""
    connection, _ = listener.accept()
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.geteuid():
        connection.close()
        return None, connection
    (rank,) = _RANK.unpack(connection.recv(_RANK.size))
    return rank, connection


def _patience(group: dist.ProcessGroup | None) -> timedelta:
    """How long ranks of a group wait for each other."""
    known = group if group is not None else dist.group.WORLD
    assert known is not None, "there is a group where there are several ranks"
    options = getattr(known._get_backend(torch.device("cpu")), "options", None)
    timeout: timedelta = getattr(options, "_timeout", dist.default_pg_timeout)
    return timeout
