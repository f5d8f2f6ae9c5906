"""A channel to a process of this host: messages through memory that both processes have mapped.

Knows: blocks of shared memory, the Unix socket that announces them. Does not know: how processes of a host
find each other (`listener`), tensors.

A sender writes a message straight into memory that its receiver has mapped as well, and announces it through
the socket; the receiver reads it there and returns the memory. So only the sender copies the message, while
TCP copies it into the kernel and out of it.
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
"""Tag of a message (or a code), number and bytes of its block, its bytes, the exchange begun last."""
_BACK, _DROPPED, _BEGUN = -1, -2, -3
"""Codes in place of a tag: a block is returned; a block is no longer used; an exchange has begun."""
_DESCRIPTOR = struct.Struct("=i")


class Channel(Messages):
    """Messages of any size. Memory stays within bounds of the bytes in flight: see `BlockPool`."""

    AHEAD = 4

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        super().__init__(connection, peer, timeout_seconds)
        self._pool = BlockPool()
        self._theirs: dict[int, Block] = {}
        self._lies_in: dict[int, int] = {}
        """Block of each message that has arrived, by its tag."""
        self._unsaid: deque[bytes] = deque()
        """Announcements that are not urgent, and did not fit into the socket's buffer."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that this side allocated for messages."""
        return self._pool.kept_bytes

    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        block, descriptor = self._pool.lend(count)
        descriptors = [] if descriptor is None else [descriptor]
        try:
            fill(block.memory[:count])
            self._say(tag, block.number, block.size, count, descriptors)
        except BaseException:
            self._pool.give_back(block.number)
            if descriptors:  # the other side has never seen the block
                self._pool.forget(block.number)
            raise
        finally:
            for each in descriptors:
                os.close(each)
        self._drop_surplus()

    def release(self, tag: int) -> None:
        """Return the memory of a message to its sender."""
        super().release(tag)
        self._say_later(_BACK, self._lies_in.pop(tag))

    def _tell_begun(self) -> None:
        with suppress(ConnectionResetError):  # the next receive reports it
            self._say(_BEGUN)

    def _drop_surplus(self) -> None:
        for number in self._pool.drop_surplus():
            self._say_later(_DROPPED, number)

    def _say_later(self, what: int, number: int) -> None:
        """Queue an announcement that is not urgent, and send what fits now; never waits."""
        self._unsaid.append(_HEADER.pack(what, number, 0, 0, self._begun))
        with suppress(
            OSError
        ):  # The buffer is full, or the other side has ended, which the next receive reports.
            while self._unsaid:
                self._connection.send(self._unsaid[0], socket.MSG_DONTWAIT)
                self._unsaid.popleft()

    def _say(
        self, what: int, number: int = 0, size: int = 0, count: int = 0, descriptors: Sequence[int] = ()
    ) -> None:
        header = _HEADER.pack(what, number, size, count, self._begun)
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(each)) for each in descriptors]
        # socket.send_fds drops flags until Python 3.12
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
        except ConnectionResetError:  # it left something unread; its earlier messages can still be read
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
        """Act on a header; KeyError, ValueError or struct.error if no `Channel` sends such a header."""
        what, number, size, count, begun = _HEADER.unpack(header)
        self._heard_begun(begun)
        if what == _BACK:
            self._pool.give_back(number)
            self._drop_surplus()
        elif what == _DROPPED:
            del self._theirs[number]
        elif what != _BEGUN:
            for descriptor in descriptors:
                # Memory beyond the end of its file can be mapped, but not read.
                if not 0 < size <= os.fstat(descriptor).st_size:
                    raise ValueError(f"a block cannot have {size} bytes")
                self._theirs[number] = Block.mapped(number, descriptor, size)
            block = self._theirs[number]
            if not 0 <= count <= block.size:
                raise ValueError(f"a message in {block.size} bytes cannot have {count}")
            self._lies_in[what] = number
            self._came(what, block.memory[:count])


def _without(error: OSError) -> OSError:
    """Return the same error with a remedy in its text."""
    return OSError(error.errno, f"{error.strerror}; raise ulimit -n, or set COTSWOLD_SHARED_MEMORY=0")


def _heard(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """Read a header and its descriptors (Python's ``recv_fds`` drops flags)."""
    # A process that another thread starts at this moment must not inherit a descriptor.
    flags |= socket.MSG_CMSG_CLOEXEC
    header, beside, how, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    if how & socket.MSG_CTRUNC:
        raise _without(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in beside]
