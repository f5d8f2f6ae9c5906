"""A channel to a process of this host: messages through memory that both have mapped.

Knows: blocks of shared memory, the Unix socket that tells of them. Does not know: how processes of a host
find each other (`listener`), tensors.

A sender writes a message straight into memory that its receiver has mapped as well, and says so through the
socket; the receiver reads it there and gives the memory back. So a message is copied once by the sender,
while one over TCP is copied into the kernel and out of it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from cotswold.host.ipc.shared_memory import Block, BlockPool
from cotswold.host.ipc.tagged_messages import Messages

_HEADER = struct.Struct("=qqqqq")
"""Tag of a message (or what is said), number and bytes of its block, bytes of it, the exchange begun last."""
_BACK, _DROPPED, _BEGUN = -1, -2, -3
"""Instead of a tag: a block is given back; a block is used no more; an exchange was begun."""
_DESCRIPTOR = struct.Struct("=i")


class Channel(Messages):
    """Messages of any size. It keeps memory within bounds of what was under way at once: see `BlockPool`."""

    AHEAD = 4

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        super().__init__(connection, peer, timeout_seconds)
        self._pool = BlockPool()
        self._theirs: dict[int, Block] = {}
        self._lies_in: dict[int, int] = {}
        """The block of each message that has come, by its tag."""
        self._unsaid: deque[bytes] = deque()
        """What the other need not know at once, and the socket had no room for."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that messages from here lie in, or lay in."""
        return self._pool.kept_bytes

    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        block, descriptor = self._pool.lend(count)
        descriptors = [] if descriptor is None else [descriptor]
        try:
            fill(block.memory[:count])
            self._say(tag, block.number, block.size, count, descriptors)
        except BaseException:
            self._pool.give_back(block.number)
            if descriptors:  # the other has never seen it
                self._pool.forget(block.number)
            raise
        finally:
            for each in descriptors:
                os.close(each)
        self._drop_surplus()

    def release(self, tag: int) -> None:
        """Give the memory of a message back."""
        super().release(tag)
        self._say_later(_BACK, self._lies_in.pop(tag))

    def _tell_begun(self) -> None:
        with suppress(ConnectionResetError):  # noticed where something is awaited
            self._say(_BEGUN)

    def _drop_surplus(self) -> None:
        for number in self._pool.drop_surplus():
            self._say_later(_DROPPED, number)

    def _say_later(self, what: int, number: int) -> None:
        """Say what nobody waits for, now or when there is room; never waits."""
        self._unsaid.append(_HEADER.pack(what, number, 0, 0, self._begun))
        with suppress(
            OSError
        ):  # no room, or the other has ended, which is noticed where something is awaited
            while self._unsaid:
                self._connection.send(self._unsaid[0], socket.MSG_DONTWAIT)
                self._unsaid.popleft()

    def _say(
        self, what: int, number: int = 0, size: int = 0, count: int = 0, descriptors: Sequence[int] = ()
    ) -> None:
        header = _HEADER.pack(what, number, size, count, self._begun)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(each)) for each in descriptors]
        # not send_fds, which drops flags until Python 3.12
        send = partial(self._connection.sendmsg, [header], beside, socket.MSG_DONTWAIT)
        try:
            self._sending(send)
        except (ConnectionResetError, TimeoutError):
            raise
        except OSError as error:
            raise _without(error) from error
        self._said_begun()

    def _hear(self, flags: int = 0) -> bool:
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
        try:
            self._take_in(header, descriptors)
        except (struct.error, KeyError, ValueError) as error:
            raise self._unknown_message() from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _take_in(self, header: bytes, descriptors: Sequence[int]) -> None:
        """Do as the other says; KeyError, ValueError or struct.error where it says what no `Channel` says."""
        what, number, size, count, begun = _HEADER.unpack(header)
        self._heard_begun(begun)
        if what == _BACK:
            self._pool.give_back(number)
            self._drop_surplus()
        elif what == _DROPPED:
            del self._theirs[number]
        elif what != _BEGUN:
            for descriptor in descriptors:
                # beyond the end of its file memory can be mapped, but not read
                if not 0 < size <= os.fstat(descriptor).st_size:
                    raise ValueError(f"a block cannot have {size} bytes")
                self._theirs[number] = Block.mapped(number, descriptor, size)
            block = self._theirs[number]
            if not 0 <= count <= block.size:
                raise ValueError(f"a message in {block.size} bytes cannot have {count}")
            self._lies_in[what] = number
            self._came(what, block.memory[:count])


def _without(error: OSError) -> OSError:
    """The same error, with a remedy."""
    return OSError(error.errno, f"{error.strerror}; raise ulimit -n, or set COTSWOLD_SHARED_MEMORY=0")


def _heard(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """A header and the descriptors beside it (Python's ``recv_fds`` drops flags)."""
    # a process that another thread starts just now must not inherit a descriptor
    flags |= socket.MSG_CMSG_CLOEXEC
    header, beside, how, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    if how & socket.MSG_CTRUNC:
        raise _without(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in beside]
