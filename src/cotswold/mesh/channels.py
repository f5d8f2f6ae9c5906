"""Messages between ranks of one host, through memory that both have mapped.

Knows: memory without a name, the sockets that tell of it, which ranks are near. Does not know: maps, plans.

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
import secrets
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from cotswold.errors import GeometryError

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
_RANK = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group at the other end of a socket."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = (Path("/proc/self/ns/net"), Path("/proc/self/ns/user"))
_PLACE_BYTES, _ADDRESS_BYTES = 64, 32


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


def _without(error: OSError) -> OSError:
    """The same error, with a remedy."""
    return OSError(error.errno, f"{error.strerror}; raise ulimit -n, or set {SWITCH}=0")


def _heard(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """A header and the descriptors beside it (Python's ``recv_fds`` drops flags)."""
    header, beside, how, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    if how & socket.MSG_CTRUNC:
        raise _without(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in beside]


def channels_of(group: dist.ProcessGroup | None, members: Sequence[int], rank: int) -> dict[int, Channel]:
    """Channels from member ``rank`` of a group to those on this host, by rank; all members call this.

    ``members`` are their ranks in the job, which errors name. Raises TimeoutError where one does not come.
    """
    here, listener, address = _place(), None, b""
    if here:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = b"\0cotswold-" + secrets.token_hex(8).encode()  # without a file, gone with the socket
        listener.bind(address)
        listener.listen(len(members))
    told = _told_by_all(here, address, group, len(members))
    if listener is None:
        return {}
    near = [other for other, (place, _) in enumerate(told) if place == here and other != rank]
    patience = int(timeout_of(group).total_seconds())
    with listener:
        found = {other: _called(told[other][1], rank) for other in near if other < rank}
        listener.settimeout(max(1, patience))
        while missing := [other for other in near if other not in found]:
            try:
                other, connection = _answered(listener)
            except TimeoutError as error:
                who = " and ".join(f"rank {members[each]}" for each in missing)
                raise TimeoutError(f"no message passed: {who} did not come within {patience} s") from error
            if other is not None:
                found[other] = connection
    for connection in found.values():
        connection.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", max(1, patience), 0))
    return {other: Channel(found[other], f"rank {members[other]}") for other in sorted(found)}


def _told_by_all(
    place: bytes, address: bytes, group: dist.ProcessGroup | None, size: int
) -> list[tuple[bytes, bytes]]:
    """The place and the address of every member; nothing that arrives is unpickled."""
    both = place.ljust(_PLACE_BYTES, b"\0") + address.ljust(_ADDRESS_BYTES, b"\0")
    mine = torch.frombuffer(bytearray(both), dtype=torch.uint8)
    all_of_them = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(all_of_them, mine, group=group)
    texts = [bytes(one.tolist()) for one in all_of_them]
    # an address begins with a zero, and has no other
    return [(text[:_PLACE_BYTES].rstrip(b"\0"), b"\0" + text[_PLACE_BYTES:].strip(b"\0")) for text in texts]


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


def timeout_of(group: dist.ProcessGroup | None) -> timedelta:
    """How long ranks of a group (the job's for None) wait for each other."""
    known = group if group is not None else dist.group.WORLD
    assert known is not None, "there is a group where there are several ranks"
    options = getattr(known._get_backend(torch.device("cpu")), "options", None)
    timeout: timedelta = getattr(options, "_timeout", dist.default_pg_timeout)
    return timeout
