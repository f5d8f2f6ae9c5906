"""How processes come to have a socket to each other, on one host or on several, whoever else calls.

Knows: Unix sockets and TCP, who may call, how long anybody is waited for. Does not know: messages, memory.

A `Listener` is called by processes of this host. Its address has no file and can be seen by every process of
the host; so a caller proves itself by the listener's secret, which its peers tell each other by a way of
their own, and must be of the same user. A `TcpListener` is called from other hosts; a caller signs the secret
with a key that never travels. Whoever says nothing, or something else, holds up nobody.
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

from cotswold.host.token import is_signed, sign

STRANGERS = 64
"""Callers at most who have not said yet who they are; the oldest are sent away."""
_RANK = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group at the other end of a socket."""
_SECRET_BYTES = 32
_SIGNATURE_BYTES = 64


class Listener:
    """Where processes of this host call one of them, ``callers`` at most; to be closed."""

    def __init__(self, callers: int) -> None:
        self.address = b"\0cotswold-" + secrets.token_hex(8).encode()  # without a file, gone with the socket
        self.secret = _new_secret()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.address)
        self._socket.listen(callers + STRANGERS)
        self._socket.setblocking(False)

    def answered(self, expected: Mapping[int, str], seconds: float) -> dict[int, socket.socket]:
        """The connections of the ranks that are ``expected``; raises TimeoutError with their names."""
        found = self.answered_in_time(expected, seconds)
        if missing := [name for rank, name in expected.items() if rank not in found]:
            _close([*found.values()])
            raise TimeoutError(
                f"no message passed: {' and '.join(missing)} did not come within {seconds:.3g} s"
            )
        return found

    def answered_in_time(self, expected: Mapping[int, str], seconds: float) -> dict[int, socket.socket]:
        """The connections of those of the ``expected`` ranks that call within so many seconds."""
        found: dict[int, socket.socket] = {}
        deadline = time.monotonic() + seconds
        strangers: list[socket.socket] = []
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            # also where strangers keep it busy
            while len(found) < len(expected) and (left := deadline - time.monotonic()) > 0:
                for key, _ in ready.select(left):
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
        """A caller who may prove itself, which is heard from now on."""
        try:
            caller, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # gone already
            return []
        if not self._may_call(caller):
            caller.close()
            return []
        caller.setblocking(False)
        ready.register(caller, selectors.EVENT_READ)
        return [caller]

    def _may_call(self, caller: socket.socket) -> bool:
        """Whether it is a process of this user."""
        return user_of(caller) == os.geteuid()

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


class TcpListener(Listener):
    """Where processes of other hosts call one, at one address of its; ``key`` is known to its peers alone."""

    def __init__(self, host: str, key: bytes, callers: int) -> None:
        self.secret, self._key = _new_secret(), key
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=callers + STRANGERS)
        self._socket.setblocking(False)
        self.address = f"{host} {self._socket.getsockname()[1]}".encode()

    def _may_call(self, caller: socket.socket) -> bool:
        """Anybody may try."""
        return True

    def _named(self, caller: socket.socket) -> int | None:
        """The rank of a caller that knows the key; None of any other."""
        try:
            said = caller.recv(_RANK.size + _SIGNATURE_BYTES + 1)
        except OSError:
            return None
        rank, signature = said[: _RANK.size], said[_RANK.size :]
        if len(rank) != _RANK.size or not is_signed(self._key, signature, self.secret, rank):
            return None
        (number,) = _RANK.unpack(rank)
        return int(number)


def _new_secret() -> bytes:
    return secrets.token_hex(_SECRET_BYTES // 2).encode()


def call_tcp(address: bytes, key: bytes, secret: bytes, rank: int, seconds: float) -> socket.socket:
    """A connection to a `TcpListener`, which is told who calls.

    Raises OSError where it cannot be reached, or does not answer.
    """
    host, port = address.decode().split()
    connection = socket.create_connection((host, int(port)), seconds)
    try:
        who = _RANK.pack(rank)
        connection.sendall(who + sign(key, secret, who))
    except BaseException:
        connection.close()
        raise
    return connection


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
