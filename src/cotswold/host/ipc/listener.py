"""Sockets between processes of one or several hosts, safe from other callers.

Knows: Unix sockets and TCP, which caller is authorised, timeouts of callers. Does not know: messages, memory.

Processes of this host call a `Listener`. Its address has no file, and every process of the host can see it.
So a caller must know the listener's secret, which the peers exchange over another channel, and must belong to
the same user. Processes of other hosts call a `TcpListener`; a caller signs the secret with a key that is
never sent. A caller that sends nothing, or something else, delays no other caller.
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

UNIDENTIFIED_MAX = 64
"""Maximum number of callers that have not identified themselves; the oldest are disconnected."""
_RANK = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=iII")
"""Process, user and group at the other end of a socket."""
_SECRET_BYTES = 32
_SIGNATURE_BYTES = 64


class Listener:
    """Accepts calls from processes of this host, at most ``callers``; must be closed."""

    def __init__(self, callers: int) -> None:
        # without a file, removed with the socket
        self.address = b"\0cotswold-" + secrets.token_hex(8).encode()
        self.secret = _new_secret()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.address)
        self._socket.listen(callers + UNIDENTIFIED_MAX)
        self._socket.setblocking(False)

    def accept_all(self, expected: Mapping[int, str], seconds: float) -> dict[int, socket.socket]:
        """Return the connections of the ``expected`` ranks; TimeoutError with the names of missing ranks."""
        found = self.accept_ready(expected, seconds)
        if missing := [name for rank, name in expected.items() if rank not in found]:
            _close([*found.values()])
            raise TimeoutError(
                f"no message passed: {' and '.join(missing)} did not connect within {seconds:.3g} s"
            )
        return found

    def accept_ready(self, expected: Mapping[int, str], seconds: float) -> dict[int, socket.socket]:
        """Return the connections of those ``expected`` ranks that call within ``seconds``."""
        found: dict[int, socket.socket] = {}
        deadline = time.monotonic() + seconds
        strangers: list[socket.socket] = []
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            # the loop ends in time even if strangers keep it busy
            while len(found) < len(expected) and (left := deadline - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    caller = key.fileobj
                    assert isinstance(caller, socket.socket)
                    if caller is self._socket:
                        strangers += self._accept_connection(ready)
                        for late in strangers[:-UNIDENTIFIED_MAX]:
                            ready.unregister(late)
                            late.close()
                        strangers = strangers[-UNIDENTIFIED_MAX:]
                    elif caller in strangers:
                        ready.unregister(caller)
                        strangers.remove(caller)
                        rank = self._identify(caller)
                        if rank is None or rank not in expected or rank in found:
                            caller.close()
                        else:
                            found[rank] = caller
        _close(strangers)
        return found

    def _accept_connection(self, ready: selectors.BaseSelector) -> list[socket.socket]:
        """Accept a caller, and listen for its identification."""
        try:
            caller, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # disconnected already
            return []
        if not self._is_authorised(caller):
            caller.close()
            return []
        caller.setblocking(False)
        ready.register(caller, selectors.EVENT_READ)
        return [caller]

    def _is_authorised(self, connection: socket.socket) -> bool:
        """True if the caller is a process of this user."""
        return user_of(connection) == os.geteuid()

    def _identify(self, caller: socket.socket) -> int | None:
        """Rank of a caller that knows the secret; None for others."""
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
        """Stop listening."""
        self._socket.close()


class TcpListener(Listener):
    """Accepts calls from other hosts at one address of this host; only the peers know ``key``."""

    def __init__(self, host: str, key: bytes, callers: int) -> None:
        self.secret, self._key = _new_secret(), key
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=callers + UNIDENTIFIED_MAX)
        self._socket.setblocking(False)
        self.address = f"{host} {self._socket.getsockname()[1]}".encode()

    def _is_authorised(self, connection: socket.socket) -> bool:
        """Accept every caller; it must sign the secret."""
        return True

    def _identify(self, caller: socket.socket) -> int | None:
        """Rank of a caller that knows the key; None for others."""
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
    """Connect to a `TcpListener` and identify this rank.

    Raises OSError if it cannot be reached, or does not answer.
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
    """Connect to the listener of the rank called ``name`` and identify this rank.

    Raises ConnectionResetError with that name if the rank no longer listens, TimeoutError if it does not
    answer.
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
    """User id of the process at the other end."""
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
