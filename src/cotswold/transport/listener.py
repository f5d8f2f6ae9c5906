"""A socket at which others call.

Knows: one ZeroMQ socket that is bound, and its monitor. Does not know: who calls, what is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from cotswold.errors import MachineError
from cotswold.transport import authentication
from cotswold.transport.address import Mode
from cotswold.transport.authentication import Keys
from cotswold.transport.frames import FRAME_BYTES, HELLO
from cotswold.transport.handshake import Hello
from cotswold.transport.sockets import MESSAGES_AHEAD, REFUSED, has_come, has_more

_HANDSHAKE_MS = 10_000
_CURVE_BYTES = 256
"""More than what encryption adds to a frame."""


class TakenError(Exception):
    """Somebody else listens there."""


@dataclass(frozen=True)
class Caller:
    """Who is at the other end of a connection to here."""

    name: str
    fingerprint: str
    """Of the token with which it came."""
    hello: Hello
    """What it said first."""


@dataclass(frozen=True)
class Came:
    """A message that has come."""

    number: bytes
    """ZeroMQ's, of the connection."""
    first: bytes
    """The first frame."""
    rest: Sequence[memoryview]
    """The others, which may be long, and are not copied."""
    fingerprint: str = ""
    """Where it says who calls: of the token with which the caller has come."""
    signed: str = ""
    """What the caller has signed by *hmac*; empty by *curve*."""


class Listener:
    """Listens at ``where`` on behalf of the endpoint called ``name``; to be closed.

    Raises TakenError where somebody else does, MachineError where the machine has no such address.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, name: str, where: str, mode: Mode
    ) -> None:
        self.socket = socket = context.socket(zmq.ROUTER)
        self.monitor = socket.get_monitor_socket(REFUSED)
        self.fingerprint = keys.fingerprint if mode == "curve" else ""
        """Of the token without which nobody can call here; empty where any of the ring will do."""
        self.callers: dict[bytes, Caller] = {}
        """By ZeroMQ's numbers of connections."""
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = MESSAGES_AHEAD
        socket.maxmsgsize = FRAME_BYTES + _CURVE_BYTES
        socket.router_mandatory = 1
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.backlog = 1024
        socket.ipv6 = "[" in where
        authentication.serve_as(socket, keys, mode)
        try:
            socket.bind(where)
        except zmq.ZMQError as error:
            self.close()
            if error.errno == zmq.EADDRINUSE:
                raise TakenError from error
            raise MachineError(
                f"the endpoint {name} cannot listen at {where}: "
                f"{zmq.strerror(error.errno or 0)}; name a free port and an address of this machine"
            ) from error
        became = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(became, bytes)
        self.where = became.rstrip(b"\0").decode()
        """The address, with the port that was free."""
        self.descriptor, self.monitor_descriptor = socket.FD, self.monitor.FD

    def take(self) -> Came | None:
        """One message that has come; None where there is none: only then does the descriptor tell of what
        comes next."""
        socket = self.socket  # frame by frame: half the time of `recv_multipart`
        if not has_come(socket):
            return None
        number, frame, rest = socket.recv(), socket.recv(copy=False), []
        while has_more(socket):
            rest.append(socket.recv(copy=False).buffer)
        first = frame.bytes
        if first[:1] != HELLO:
            return Came(number, first, rest)
        fingerprint, _, signed = str(frame.get("User-Id")).partition(" ")
        return Came(number, first, rest, fingerprint, signed)

    def strangers(self) -> int:
        """How many callers were refused since this was last asked."""
        count = 0
        while has_come(self.monitor):
            self.monitor.recv_multipart()
            count += 1
        return count

    def tell(self, number: bytes, frames: Sequence[bytes]) -> None:
        """Answer on a connection to here, if it still stands."""
        try:
            self.socket.send_multipart([number, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def close(self) -> None:
        """Hang up on all."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
