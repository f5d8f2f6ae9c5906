"""How ranks of one host come to have a socket to each other, whoever else calls.

Knows: Unix sockets, who may call, how long anybody is waited for. Does not know: messages, memory.

A listener's address has no file and can be seen by every process of the host; so a caller proves itself by a
secret that all ranks tell each other through their process group, and must be of the same user. Whoever says
nothing, or something else, holds up nobody.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping

STRANGERS = 64
"""Callers at most who have not said yet who they are; the oldest are sent away."""
_RANK = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group at the other end of a socket."""
_SECRET_BYTES = 32


class Listener:
    """Where the ranks of this host call one of them, ``callers`` at most; to be closed."""

    def __init__(self, callers: int) -> None:
        self.address = b"\0cotswold-" + secrets.token_hex(8).encode()  # without a file, gone with the socket
        self.secret = secrets.token_hex(_SECRET_BYTES // 2).encode()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.address)
        self._socket.listen(callers + STRANGERS)
        self._socket.setblocking(False)

    def answered(self, expected: Mapping[int, str], seconds: float) -> dict[int, socket.socket]:
        """The connections of the ranks that are ``expected``; raises TimeoutError with their names."""
        found: dict[int, socket.socket] = {}
        deadline = time.monotonic() + seconds
        strangers: list[socket.socket] = []
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            while missing := [name for rank, name in expected.items() if rank not in found]:
                events = ready.select(max(0, deadline - time.monotonic()))
                if not events and time.monotonic() >= deadline:
                    _close([*strangers, *found.values()])
                    who = " and ".join(missing)
                    raise TimeoutError(f"no message passed: {who} did not come within {seconds:.3g} s")
                for key, _ in events:
                    caller = key.fileobj
                    assert isinstance(caller, socket.socket)
                    if caller is self._socket:
                        strangers += self._came(ready)
                        for late in strangers[:-STRANGERS]:
                            ready.unregister(late)
                            late.close()
                        strangers = strangers[-STRANGERS:]
                    elif caller in strangers:
                        ready.unregister(caller)
                        strangers.remove(caller)
                        rank = self._named(caller)
                        if rank is None or rank not in expected or rank in found:
                            caller.close()
                        else:
                            found[rank] = caller
        _close(strangers)
        return found

    def _came(self, ready: selectors.BaseSelector) -> list[socket.socket]:
        """A caller of this user, which is heard from now on."""
        try:
            caller, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # gone already
            return []
        if user_of(caller) != os.geteuid():
            caller.close()
            return []
        caller.setblocking(False)
        ready.register(caller, selectors.EVENT_READ)
        return [caller]

    def _named(self, caller: socket.socket) -> int | None:
        """The rank of a caller that knows the secret; None of any other."""
        try:
            said = caller.recv(_RANK.size + _SECRET_BYTES + 1)
        except OSError:
            return None
        if len(said) != _RANK.size + _SECRET_BYTES or not hmac.compare_digest(
            said[_RANK.size :], self.secret
        ):
            return None
        (rank,) = _RANK.unpack(said[: _RANK.size])
        return int(rank)

    def close(self) -> None:
        """Nobody is answered any more."""
        self._socket.close()


def call(address: bytes, secret: bytes, rank: int, name: str, seconds: float) -> socket.socket:
    """A connection to the listener of the rank called ``name``, which is told who calls.

    Raises ConnectionResetError, which names that rank, where it does not listen any more, TimeoutError where
    it does not answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
        if user_of(connection) != os.geteuid():
            raise ConnectionRefusedError("another user listens")
        connection.send(_RANK.pack(rank) + secret)
    except TimeoutError as error:
        connection.close()
        raise TimeoutError(f"no message passed: {name} did not answer within {seconds:.3g} s") from error
    except ConnectionError as error:
        connection.close()
        raise ConnectionResetError(f"connection closed by peer: {name} does not listen") from error
    except BaseException:
        connection.close()
        raise
    return connection


def user_of(connection: socket.socket) -> int:
    """The user at the other end."""
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
