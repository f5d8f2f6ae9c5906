"""A stream to a process of another host: short messages over TCP, each sent together with its header.

Knows: frames, the maximum length of a message. Does not know: how processes find each other (`listener`),
tensors.

A process reads from a stream only while it waits for a message or sends one. So a short message costs two
system calls and no thread. Until then the kernel buffers what was sent; it has space for messages of
`BATCHES_AHEAD` exchanges and of a dozen more open ones, which is why long messages are refused.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cotswold.host.ipc.tagged_messages import TaggedChannel

MESSAGE_BYTES_MAX = 1 << 14
"""Maximum size of a message in bytes."""
_HEADER = struct.Struct("=qqq")
"""Tag of a message (or `_BEGUN`), its size in bytes, the exchange begun last."""
_BEGUN = -1
"""Code in place of a tag: an exchange has begun."""
_RECEIVE_BYTES = 1 << 16


class TcpChannel(TaggedChannel):
    """Messages of at most `MESSAGE_BYTES_MAX`."""

    AHEAD = 8

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        super().__init__(connection, peer, timeout_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._partial = bytearray()

    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        if count > MESSAGE_BYTES_MAX:
            raise ValueError(f"a stream takes messages of at most {MESSAGE_BYTES_MAX} bytes, got {count}")
        frame = bytearray(_HEADER.size + count)
        _HEADER.pack_into(frame, 0, tag, count, self._begun)
        fill(memoryview(frame)[_HEADER.size :])
        self._send_all(frame)

    def _report_begun(self) -> None:
        with suppress(ConnectionResetError):  # the next receive reports it
            self._send_all(_HEADER.pack(_BEGUN, 0, self._begun))

    def _send_all(self, frame: bytes | bytearray) -> None:
        left = memoryview(frame)
        try:
            while left:
                left = left[self._send_or_drain(partial(self._connection.send, left, socket.MSG_DONTWAIT)) :]
        except BaseException:
            if len(left) < len(frame):  # the other side would take the next message for the rest of this one
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
            raise
        self._mark_begun_reported()

    def _receive_next(self, flags: int = 0) -> bool:
        try:
            data = self._connection.recv(_RECEIVE_BYTES, flags)
        except BlockingIOError as error:
            if flags:
                return False
            raise self._timeout_error("sent nothing") from error
        except OSError as error:  # reset, or found dead by TCP itself
            if flags:
                return False
            raise self._lost_error() from error
        if not data:
            if flags:
                return False
            raise self._lost_error()
        self._partial += data
        at = 0
        while len(self._partial) - at >= _HEADER.size:
            tag, count, begun = _HEADER.unpack_from(self._partial, at)
            if not 0 <= count <= MESSAGE_BYTES_MAX:
                raise self._unknown_message_error()
            first, at = at + _HEADER.size, at + _HEADER.size + count
            if at > len(self._partial):
                at = first - _HEADER.size
                break
            self._note_peer_begun(begun)
            if tag != _BEGUN:
                self._deliver(tag, memoryview(self._partial[first:at]))
        del self._partial[:at]
        return True
