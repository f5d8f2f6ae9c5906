"""One outgoing connection: a socket and its monitor.

Knows: ZeroMQ's options for a caller, why a connection ended. Does not know: messages, the peer.

A connection never reconnects by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import zmq

from cotswold.errors import ClusterError
from cotswold.host.open_files import can_open
from cotswold.transport import authentication
from cotswold.transport.address import Address
from cotswold.transport.authentication import Keys
from cotswold.transport.frames import LossCause
from cotswold.transport.sockets import (
    AUTHENTICATION_FAILED,
    QUEUE_MESSAGES,
    is_readable_now,
    is_writable_now,
    readable_and_writable,
)

_CONNECT_SECONDS = 20.0
"""Seconds until connecting fails."""
_HANDSHAKE_SECONDS = 30.0
"""Seconds until a handshake fails."""
_PROMPT_SECONDS = 8.0
"""Seconds within which a closed port or a refused token shows. A later end is a timeout: the peer is
stopped, or a firewall drops the packets."""
DESCRIPTORS = 8
"""Free descriptors needed to connect to a peer: five, and a reserve for others opened meanwhile."""
_PROBES = 4
"""Number of TCP keepalive probes, spread evenly over the time after which an idle host is lost."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(frozen=True)
class OutgoingCall:
    """Caller and callee of a connection."""

    own_name: str
    nonce: str
    name: str
    address: Address
    lost_seconds: float


class OutgoingConnection:
    """Connects with the keys of a token, and sends ``hello``; must be closed. The owner polls its two
    descriptors. Raises ClusterError for an invalid address."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], call: OutgoingCall, keys: Keys, hello: bytes
    ) -> None:
        endpoint, mode = call.address.route
        # with *hmac* an endpoint says why it refuses; a handshake without a reason means that it exited
        self._refusals = (
            AUTHENTICATION_FAILED
            if mode == "curve"
            else AUTHENTICATION_FAILED & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._started_at = time.monotonic()
        if not can_open(DESCRIPTORS):  # without free descriptors ZeroMQ aborts the process
            raise ClusterError(
                f"{call.name} cannot be called: this process may open fewer than {DESCRIPTORS} more files; "
                "raise the limit (ulimit -n)"
            )
        self.socket = socket = context.socket(zmq.DEALER)
        self.monitor = socket.get_monitor_socket(_ENDED | AUTHENTICATION_FAILED)
        self.descriptor, self.monitor_descriptor = socket.FD, self.monitor.FD
        try:
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = QUEUE_MESSAGES
            socket.maxmsgsize = 1 << 16
            socket.reconnect_ivl = -1
            socket.handshake_ivl = round(1000 * _HANDSHAKE_SECONDS)
            if endpoint.startswith("tcp"):
                _connect_tcp(socket, endpoint, call.lost_seconds)
            authentication.call_as(socket, keys, mode, call.address.challenge, call.own_name, call.nonce)
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as error:
                raise ClusterError(
                    f"{call.name} cannot be reached at {endpoint}: {error.strerror}"
                ) from error
            with suppress(zmq.Again):  # refused already; the monitor reports it
                socket.send(hello, zmq.NOBLOCK)
        except BaseException:
            self.close()
            raise

    def poll(self) -> tuple[bool, bool]:
        """Return whether an answer can be received and whether a message can be sent, from one query.

        The query consumes what the descriptor would signal.
        """
        return readable_and_writable(self.socket)

    def answer(self) -> list[bytes]:
        """Receive an answer that has arrived."""
        return self.socket.recv_multipart()

    def send(self, first: bytes, rest: Sequence[bytes | memoryview | zmq.Frame]) -> bool:
        """Pass a message to ZeroMQ; return False if its queue is full."""
        *before, last = first, *rest
        for _ in range(2):
            try:
                for one in before:
                    self.socket.send(one, _MORE)
                self.socket.send(last, zmq.NOBLOCK)
            except zmq.Again:
                # ZeroMQ checks for space only once a millisecond, and when its events are queried
                if not is_writable_now(self.socket):
                    return False
            else:
                return True
        return False

    def end_cause(self) -> LossCause | None:
        """Return the reported end of the connection, as for a peer that never answered; None while it is
        open."""
        end = None
        is_late = time.monotonic() - self._started_at > _PROMPT_SECONDS
        refusals = self._refusals & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL if is_late else self._refusals
        while is_readable_now(self.monitor):
            said = self.monitor.recv_multipart()
            event = int.from_bytes(said[0][:2], "little")
            if event & refusals:
                end = LossCause.REFUSED
            elif end is None:
                end = LossCause.SILENT if is_late else LossCause.ABSENT
        return end

    def close(self, linger: float = 0.0) -> None:
        """Disconnect; wait up to ``linger`` seconds for sent messages to leave."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(int(1000 * linger))


def _connect_tcp(socket: zmq.Socket[bytes], endpoint: str, lost_seconds: float) -> None:
    socket.connect_timeout = round(1000 * min(_CONNECT_SECONDS, lost_seconds))
    socket.tcp_maxrt = round(1000 * lost_seconds)
    socket.tcp_keepalive, socket.tcp_keepalive_cnt = 1, _PROBES
    pause = max(1, round(lost_seconds / (_PROBES + 1)))
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = pause
    socket.ipv6 = "[" in endpoint
