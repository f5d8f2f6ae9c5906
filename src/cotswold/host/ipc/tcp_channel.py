"""A stream to a process of another host: short messages over TCP, each with its header in one piece.

Knows: frames, how long a message may be. Does not know: how processes find each other (`listener`), tensors.

Nobody reads from a stream but who waits for a message or sends one, so that a short message costs two system
calls and no thread. What was sent lies in the kernel until then, which has room for messages of `AHEAD`
exchanges and of a dozen more that are open; that is why long ones are not taken.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cotswold.host.ipc.tagged_messages import Messages

MOST_BYTES = 1 << 14
"""The longest message."""
_HEADER = struct.Struct("=qqq")
"""Tag of a message (or `_BEGUN`), bytes of it, the exchange begun last."""
_BEGUN = -1
"""Instead of a tag: an exchange was begun."""
_PIECE = 1 << 16


class MessageStream(Messages):
    """Messages of `MOST_BYTES` at most."""

    AHEAD = 8

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        super().__init__(connection, peer, timeout_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._partial = bytearray()

    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        if count > MOST_BYTES:
            raise ValueError(f"a stream takes messages of {MOST_BYTES} bytes at most, not {count}")
        frame = bytearray(_HEADER.size + count)
        _HEADER.pack_into(frame, 0, tag, count, self._begun)
        fill(memoryview(frame)[_HEADER.size :])
        self._send_all(frame)

    def _tell_begun(self) -> None:
        with suppress(ConnectionResetError):  # noticed where something is awaited
            self._send_all(_HEADER.pack(_BEGUN, 0, self._begun))

    def _send_all(self, frame: bytes | bytearray) -> None:
        left = memoryview(frame)
        try:
            while left:
                left = left[self._sending(partial(self._connection.send, left, socket.MSG_DONTWAIT)) :]
        except BaseException:
            if len(left) < len(frame):  # the other would take what comes next for the rest of this message
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
            raise
        self._said_begun()

    def _hear(self, flags: int = 0) -> bool:
        try:
            data = self._connection.recv(_PIECE, flags)
        except BlockingIOError as error:
            if flags:
                return False
            raise self._late("sent nothing") from error
        except OSError as error:  # reset, or found dead by TCP itself
            if flags:
                return False
            raise self._lost() from error
        if not data:
            if flags:
                return False
            raise self._lost()
        self._partial += data
        at = 0
        while len(self._partial) - at >= _HEADER.size:
            tag, count, begun = _HEADER.unpack_from(self._partial, at)
            if not 0 <= count <= MOST_BYTES:
                raise self._unknown_message()
            first, at = at + _HEADER.size, at + _HEADER.size + count
            if at > len(self._partial):
                at = first - _HEADER.size
                break
            self._heard_begun(begun)
            if tag != _BEGUN:
                self._came(tag, memoryview(self._partial[first:at]))
        del self._partial[:at]
        return True
