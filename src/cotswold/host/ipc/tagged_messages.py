"""Messages with tags between two processes over a socket: what has come, what is awaited, who is ahead.

Knows: tags, which exchanges the other side has begun, how far a sender may be ahead, who is gone. Does not
know: how bytes travel (`Channel`, `MessageStream`), what they mean.

Both sides begin exchanges in one order, with tags that rise. A side tells the other which exchange it began
last: beside each message, and by itself where it has nothing to send. `finish` waits while the other has not
begun several exchanges that are finished here. Exchanges that the other has begun are never waited for: it
may finish them in any order, or do something else first. So whoever waits, waits for somebody who is behind
in the common order, and whoever is behind all others waits for nobody: there is no deadlock.
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


class Messages(ABC):
    """One message each way a tag, to and from one process. ``peer`` names it in errors.

    Methods raise ConnectionResetError where the other has ended, TimeoutError where nothing passes for
    ``timeout_seconds``.
    """

    AHEAD: ClassVar[int]
    """Exchanges that are finished here and not begun there, at most."""

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
        """Tags that were begun here and whose message was not released."""
        self._given_up: set[int] = set()
        """Those of them whose exchange was abandoned before the message came."""
        self._begun = self._told_begun = -1
        self._unknown = 0
        """Exchanges begun here of which the other does not know."""
        self._begun_there = -1
        self._sent: set[int] = set()
        """Tags sent here that the other may not have begun."""
        self._finished: set[int] = set()
        """Those of them whose exchange is finished here."""

    def begin(self, tag: int) -> None:
        """An exchange begins in which the other sends a message here."""
        self._begun = tag
        self._awaited.add(tag)
        self._unknown += 1
        self._hear_all()
        if self._unknown >= max(1, self.AHEAD // 2):
            self._tell_begun()

    def send(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        """Send ``count`` bytes, which ``fill`` writes; when it returns, their source may change."""
        self._hear_all()
        if tag > self._begun_there:
            self._sent.add(tag)
        self._push(tag, count, fill)

    def receive(self, tag: int) -> memoryview:
        """The bytes of a message, once it has come; to be read until it is released."""
        while tag not in self._arrived:
            self._hear()
        return self._arrived[tag]

    def release(self, tag: int) -> None:
        """Nobody reads the bytes of a message any more."""
        self._awaited.discard(tag)
        self._arrived.pop(tag)

    def finish(self, tag: int) -> None:
        """The exchange of a tag is finished here; waits while the other is too far behind."""
        self._mark_finished(tag)
        while len(self._finished) > self.AHEAD:
            self._hear()

    def abandon(self, tag: int) -> None:
        """The exchange of a tag is given up here: what comes is dropped, what was sent may be read there."""
        self._mark_finished(tag)
        if tag in self._arrived:
            self.release(tag)
        elif tag in self._awaited:
            self._given_up.add(tag)

    @abstractmethod
    def _push(self, tag: int, count: int, fill: Callable[[memoryview], object]) -> None:
        """Send a message."""

    @abstractmethod
    def _tell_begun(self) -> None:
        """Say that the exchange ``_begun`` was begun here."""

    @abstractmethod
    def _hear(self, flags: int = 0) -> bool:
        """Take in something that the other says; False if it has said nothing (with ``MSG_DONTWAIT``)."""

    def _hear_all(self) -> None:
        while self._hear(socket.MSG_DONTWAIT):
            pass

    def _came(self, tag: int, values: memoryview) -> None:
        self._arrived[tag] = values
        if tag in self._given_up:
            self._given_up.discard(tag)
            self.release(tag)

    def _said_begun(self) -> None:
        """The other is being told of all exchanges that were begun here."""
        self._unknown = 0

    def _heard_begun(self, tag: int) -> None:
        """The other has begun all exchanges up to this one."""
        if tag > self._begun_there:
            self._begun_there = tag
            self._sent = {one for one in self._sent if one > tag}
            self._finished = {one for one in self._finished if one > tag}

    def _mark_finished(self, tag: int) -> None:
        if tag in self._sent:
            self._finished.add(tag)

    def _sending(self, send: Callable[[], int]) -> int:
        """What a socket's ``send`` returns; while there is no room for it, what the other says is heard."""
        while True:
            try:
                return send()
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self._connection, select.POLLIN | select.POLLOUT)
                if not waiting.poll(None if self._seconds is None else 1000 * self._seconds):
                    raise self._late("heard nothing") from None
                self._hear_all()
            except (BrokenPipeError, ConnectionResetError) as error:
                raise self._lost() from error

    def _lost(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer}")

    def _unknown_message(self) -> ConnectionResetError:
        return ConnectionResetError(f"connection closed by peer: {self._peer} sent no message of ours")

    def _late(self, what: str) -> TimeoutError:
        return TimeoutError(f"no message passed: {self._peer} {what} within the timeout of its group")


def _close_in_child() -> None:
    """A forked child is no peer: while it kept sockets open, nobody would hear that its parent has ended."""
    for connection in list(_OPEN):
        with suppress(OSError):
            connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
