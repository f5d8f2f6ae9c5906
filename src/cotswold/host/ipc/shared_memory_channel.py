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

from cotswold.host.ipc.shared_memory import BlockPool, MemoryBlock
from cotswold.host.ipc.tagged_messages import TaggedChannel

_HEADER = struct.Struct("=qqqqq")
"""Tag of a message (or a code), number and bytes of its block, its bytes, the exchange begun last."""
_RETURNED, _DROPPED, _BEGUN = -1, -2, -3
"""Codes in place of a tag: a block is returned; a block is no longer used; an exchange has begun."""
_DESCRIPTOR = struct.Struct("=i")


class SharedMemoryChannel(TaggedChannel):
    """Messages of any size. Memory stays within bounds of the bytes in flight: see `BlockPool`."""

    AHEAD = 4

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        super().__init__(connection, peer, timeout_seconds)
        self._pool = BlockPool()
        self._peer_blocks: dict[int, MemoryBlock] = {}
        self._block_of_tag: dict[int, int] = {}
        """Block of each message that has arrived, by its tag."""
        self._queued_notices: deque[bytes] = deque()
        """Announcements that are not urgent, and did not fit into the socket's buffer."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that this side allocated for messages."""
        return self._pool.allocated_bytes

    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        block, descriptor = self._pool.acquire(count)
        descriptors = [] if descriptor is None else [descriptor]
        try:
            fill(block.memory[:count])
            self._send_header(tag, block.number, block.size, count, descriptors)
        except BaseException:
            self._pool.release(block.number)
            if descriptors:  # the other side has never seen the block
                self._pool.remove(block.number)
            raise
        finally:
            for each in descriptors:
                os.close(each)
        self._drop_surplus()

    def release(self, tag: int) -> None:
        """Return the memory of a message to its sender."""
        super().release(tag)
        self._queue_notice(_RETURNED, self._block_of_tag.pop(tag))

    def _report_begun(self) -> None:
        with suppress(ConnectionResetError):  # the next receive reports it
            self._send_header(_BEGUN)

    def _drop_surplus(self) -> None:
        for number in self._pool.drop_surplus():
            self._queue_notice(_DROPPED, number)

    def _queue_notice(self, what: int, number: int) -> None:
        """Queue an announcement that is not urgent, and send what fits now; never waits."""
        self._queued_notices.append(_HEADER.pack(what, number, 0, 0, self._begun))
        with suppress(
            OSError
        ):  # The buffer is full, or the other side has ended, which the next receive reports.
            while self._queued_notices:
                self._connection.send(self._queued_notices[0], socket.MSG_DONTWAIT)
                self._queued_notices.popleft()

    def _send_header(
        self, what: int, number: int = 0, size: int = 0, count: int = 0, descriptors: Sequence[int] = ()
    ) -> None:
        header = _HEADER.pack(what, number, size, count, self._begun)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(each)) for each in descriptors]
        # socket.send_fds drops flags until Python 3.12
        send = partial(self._connection.sendmsg, [header], ancillary, socket.MSG_DONTWAIT)
        try:
            self._send_or_drain(send)
        except (ConnectionResetError, TimeoutError):
            raise
        except OSError as error:
            raise _with_remedy(error) from error
        self._mark_begun_reported()

    def _receive_next(self, flags: int = 0) -> bool:
        try:
            header, descriptors = _receive_header(self._connection, flags)
        except BlockingIOError as error:
            if flags:
                return False
            raise self._timeout_error("sent nothing") from error
        except ConnectionResetError:  # it left something unread; its earlier messages can still be read
            return True
        if not header:
            if flags:
                return False
            raise self._lost_error()
        try:
            self._handle_header(header, descriptors)
        except (struct.error, KeyError, ValueError) as error:
            raise self._unknown_message_error() from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _handle_header(self, header: bytes, descriptors: Sequence[int]) -> None:
        """Act on a header; KeyError, ValueError or struct.error if the header is invalid."""
        what, number, size, count, begun = _HEADER.unpack(header)
        self._note_peer_begun(begun)
        if what == _RETURNED:
            self._pool.release(number)
            self._drop_surplus()
        elif what == _DROPPED:
            del self._peer_blocks[number]
        elif what != _BEGUN:
            for descriptor in descriptors:
                # Memory beyond the end of its file can be mapped, but not read.
                if not 0 < size <= os.fstat(descriptor).st_size:
                    raise ValueError(f"a block cannot have {size} bytes")
                self._peer_blocks[number] = MemoryBlock.map(number, descriptor, size)
            block = self._peer_blocks[number]
            if not 0 <= count <= block.size:
                raise ValueError(f"a message in {block.size} bytes cannot have {count}")
            self._block_of_tag[what] = number
            self._deliver(what, block.memory[:count])


def _with_remedy(error: OSError) -> OSError:
    """Return the same error with a remedy in its text."""
    return OSError(error.errno, f"{error.strerror}; raise ulimit -n, or set COTSWOLD_SHARED_MEMORY=0")


def _receive_header(connection: socket.socket, flags: int) -> tuple[bytes, list[int]]:
    """Read a header and its descriptors (Python's ``recv_fds`` drops flags)."""
    # A process that another thread starts at this moment must not inherit a descriptor.
    flags |= socket.MSG_CMSG_CLOEXEC
    header, ancillary, how, _ = connection.recvmsg(_HEADER.size, socket.CMSG_LEN(_DESCRIPTOR.size), flags)
    if how & socket.MSG_CTRUNC:
        raise _with_remedy(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    return header, [_DESCRIPTOR.unpack(data)[0] for _, _, data in ancillary]
