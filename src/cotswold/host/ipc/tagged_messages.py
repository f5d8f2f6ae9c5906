"""Tagged messages between two processes over a socket, with flow control by exchanges.

Knows: tags, exchanges that the other side has begun, how far a sender may be ahead, lost peers. Does not
know: how bytes travel (`SharedMemoryChannel`, `TcpChannel`), their meaning.

Both sides begin exchanges in the same order, with increasing tags. A side reports which exchange it began
last: with each message, and separately if it has nothing to send. `finish` waits while the other side has not
begun several exchanges that are finished here. It never waits for exchanges that the other side has begun:
the other side may finish them in any order, or do something else first. So a waiting side always waits for
one that is behind in the common order, and the side furthest behind waits for no one: there is no deadlock.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""Sockets of this process's connections."""


class TaggedChannel(ABC):
    """One message per tag in each direction, to and from one process, which errors call ``peer``.

    Methods raise ConnectionResetError if the other side has ended, TimeoutError if nothing arrives for
    ``timeout_seconds``.
    """

    AHEAD: ClassVar[int]
    """Maximum number of exchanges that are finished here and not begun at the other side."""

    def __init__(self, connection: socket.socket, peer: str, timeout_seconds: float | None = None) -> None:
        self._connection, self._peer, self._seconds = connection, peer, timeout_seconds
        connection.settimeout(None)
        if timeout_seconds is not None:
            limit = struct.pack("@ll", int(timeout_seconds), int(timeout_seconds % 1 * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        weakref.finalize(self, connection.close)
        _OPEN.add(connection)
        self._arrived: dict[int, memoryview] = {}
        self._awaited: set[int] = set()
        """Tags of exchanges begun here whose message is not released yet."""
        self._abandoned: set[int] = set()
        """Tags whose exchange was abandoned before the message arrived."""
        self._begun = -1
        self._unreported = 0
        """Number of exchanges begun here that the other side does not know of."""
        self._peer_begun = -1
        self._sent: set[int] = set()
        """Tags sent here whose exchange the other side may not have begun."""
        self._finished: set[int] = set()
        """Sent tags whose exchange is finished here."""

    def begin(self, tag: int) -> None:
        """Begin an exchange in which the other side sends a message."""
        self._begun = tag
        self._awaited.add(tag)
        self._unreported += 1
        self._receive_pending()
        if self._unreported >= max(1, self.AHEAD // 2):
            self._report_begun()

    def send(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        """Send ``count`` bytes, which ``fill`` writes; their source may change after the call."""
        self._receive_pending()
        if tag > self._peer_begun:
            self._sent.add(tag)
        self._push(tag, count, fill)

    def receive(self, tag: int) -> memoryview:
        """Wait for a message and return its bytes, which are valid until `release`."""
        while tag not in self._arrived:
            self._receive_next()
        return self._arrived[tag]

    def release(self, tag: int) -> None:
        """Release the bytes of a message."""
        self._awaited.discard(tag)
        self._arrived.pop(tag)

    def finish(self, tag: int) -> None:
        """Finish the exchange of a tag; waits while the other side is too far behind."""
        self._mark_finished(tag)
        while len(self._finished) > self.AHEAD:
            self._receive_next()

    def abandon(self, tag: int) -> None:
        """Abandon the exchange of a tag: drop its message; the other side may still read what was sent."""
        self._mark_finished(tag)
        if tag in self._arrived:
            self.release(tag)
        elif tag in self._awaited:
            self._abandoned.add(tag)

    @abstractmethod
    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        """Send a message."""

    @abstractmethod
    def _report_begun(self) -> None:
        """Report that the exchange ``_begun`` has begun here."""

    @abstractmethod
    def _receive_next(self, flags: int = 0) -> bool:
        """Process one report of the other side; False if there is none (with ``MSG_DONTWAIT``)."""

    def _receive_pending(self) -> None:
        while self._receive_next(socket.MSG_DONTWAIT):
            pass

    def _deliver(self, tag: int, values: memoryview) -> None:
        self._arrived[tag] = values
        if tag in self._abandoned:
            self._abandoned.discard(tag)
            self.release(tag)

    def _mark_begun_reported(self) -> None:
        """Note that the other side is being informed of all exchanges begun here."""
        self._unreported = 0

    def _note_peer_begun(self, tag: int) -> None:
        """Note that the other side has begun all exchanges up to this one."""
        if tag > self._peer_begun:
            self._peer_begun = tag
            self._sent = {one for one in self._sent if one > tag}
            self._finished = {one for one in self._finished if one > tag}

    def _mark_finished(self, tag: int) -> None:
        if tag in self._sent:
            self._finished.add(tag)

    def _send_or_drain(self, send: Callable[[], int]) -> int:
        """Return the result of a socket's ``send``; while its buffer is full, read from the other side."""
        while True:
            try:
                return send()
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self._connection, select.POLLIN | select.POLLOUT)
                if not waiting.poll(None if self._seconds is None else 1000 * self._seconds):
                    raise self._timeout_error("received nothing") from None
                self._receive_pending()
            except (BrokenPipeError, ConnectionResetError) as error:
                raise self._lost_error() from error

    def _lost_error(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer}")

    def _unknown_message_error(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer} sent an unknown message")

    def _timeout_error(self, what: str) -> TimeoutError:
        return TimeoutError(f"no message passed: {self._peer} {what} within the timeout of its group")


def _close_in_child() -> None:
    """Close the sockets in a forked child: open copies would hide the parent's end from its peers."""
    for connection in list(_OPEN):
        with suppress(OSError):
            connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
