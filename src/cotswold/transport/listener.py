"""A socket for incoming connections.

Knows: one bound ZeroMQ socket and its monitor. Does not know: the callers' messages.
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
from cotswold.transport.sockets import AUTHENTICATION_FAILED, QUEUE_MESSAGES, has_more, is_readable_now

_HANDSHAKE_MS = 10_000
_CURVE_BYTES = 256
"""Upper bound on the bytes that encryption adds to a frame."""


class AddressInUseError(Exception):
    """Another process listens at the address."""


@dataclass(frozen=True)
class Caller:
    """The process at the other end of an incoming connection."""

    name: str
    fingerprint: str
    """Fingerprint of the token that it used."""
    hello: Hello
    """Its first message."""


@dataclass(frozen=True)
class IncomingMessage:
    """A received message."""

    number: bytes
    """ZeroMQ's number of the connection."""
    first: bytes
    """The first frame."""
    frames: Sequence[memoryview]
    """The other frames, which may be long and are not copied."""
    fingerprint: str = ""
    """Fingerprint of the caller's token; set for a `Hello` only."""
    signature: str = ""
    """Text that the caller signed with *hmac*; empty with *curve*."""


class EndpointListener:
    """Listens at ``where`` for the endpoint called ``name``; must be closed.

    Raises AddressInUseError if another process listens there, MachineError if the machine has no such
    address.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, name: str, where: str, mode: Mode
    ) -> None:
        self.socket = socket = context.socket(zmq.ROUTER)
        self.monitor = socket.get_monitor_socket(AUTHENTICATION_FAILED)
        self.fingerprint = keys.fingerprint if mode == "curve" else ""
        """Fingerprint of the token that callers need; empty if any token of the ring is accepted."""
        self.callers: dict[bytes, Caller] = {}
        """Callers by ZeroMQ's connection number."""
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = QUEUE_MESSAGES
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
                raise AddressInUseError from error
            raise MachineError(
                f"the endpoint {name} cannot listen at {where}: "
                f"{zmq.strerror(error.errno or 0)}; give a free port and an address of this machine"
            ) from error
        became = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(became, bytes)
        self.where = became.rstrip(b"\0").decode()
        """The address, with the port that was chosen."""
        self.descriptor, self.monitor_descriptor = socket.FD, self.monitor.FD

    def receive(self) -> IncomingMessage | None:
        """Return a received message, or None. Only after None does the descriptor signal the next message."""
        socket = self.socket  # frame by frame: half the time of `recv_multipart`
        if not is_readable_now(socket):
            return None
        number, frame, rest = socket.recv(), socket.recv(copy=False), []
        while has_more(socket):
            rest.append(socket.recv(copy=False).buffer)
        first = frame.bytes
        if first[:1] != HELLO:
            return IncomingMessage(number, first, rest)
        fingerprint, _, signed = str(frame.get("User-Id")).partition(" ")
        return IncomingMessage(number, first, rest, fingerprint, signed)

    def rejected(self) -> int:
        """Number of callers refused since the last call."""
        count = 0
        while is_readable_now(self.monitor):
            self.monitor.recv_multipart()
            count += 1
        return count

    def send(self, number: bytes, frames: Sequence[bytes]) -> None:
        """Send an answer on an incoming connection, if it is still open."""
        try:
            self.socket.send_multipart([number, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def close(self) -> None:
        """Close all connections."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
