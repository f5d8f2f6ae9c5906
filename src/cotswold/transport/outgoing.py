"""One connection to an endpoint that is called: a socket and its monitor.

Knows: ZeroMQ's options for a caller, why a connection ended. Does not know: messages, who is called.

A connection is never made again by itself.
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
from cotswold.transport.frames import End
from cotswold.transport.sockets import MESSAGES_AHEAD, REFUSED, has_come, has_come_and_room, has_room

_CONNECT_SECONDS = 20.0
"""How long a connection is tried."""
_HANDSHAKE_SECONDS = 30.0
"""How long a handshake is waited for."""
_PROMPT_SECONDS = 8.0
"""Whoever takes no calls, or not this token, shows that sooner. What ends later has run out of time, ours or
the other's, who is stopped perhaps, or behind a wall that lets nothing pass."""
DESCRIPTORS = 8
"""Files that must be left for one peer more: five, and some that others open meanwhile."""
_PROBES = 4
"""Questions, evenly spread over the time after which a host is lost, to one to which nothing is sent."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(frozen=True)
class Call:
    """Who is called, by whom."""

    own_name: str
    nonce: str
    name: str
    address: Address
    lost_seconds: float


class Connection:
    """Calls with the keys of a token, and says ``hello``; to be closed. Whoever made it reads its two
    descriptors. Raises ClusterError for an address that is none."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], call: Call, keys: Keys, hello: bytes) -> None:
        endpoint, mode = call.address.way
        # whoever is called by *hmac* says why it refuses: it may end meanwhile, and that is no refusal
        self._refusals = REFUSED if mode == "curve" else REFUSED & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self._began = time.monotonic()
        if not can_open(DESCRIPTORS):  # ZeroMQ ends a process that has none left
            raise ClusterError(
                f"{call.name} cannot be called: this process may open fewer than {DESCRIPTORS} files more; "
                "allow more (ulimit -n)"
            )
        self.socket = socket = context.socket(zmq.DEALER)
        self.monitor = socket.get_monitor_socket(_ENDED | REFUSED)
        self.descriptor, self.monitor_descriptor = socket.FD, self.monitor.FD
        try:
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = MESSAGES_AHEAD
            socket.maxmsgsize = 1 << 16
            socket.reconnect_ivl = -1
            socket.handshake_ivl = round(1000 * _HANDSHAKE_SECONDS)
            if endpoint.startswith("tcp"):
                _travel_by_tcp(socket, endpoint, call.lost_seconds)
            authentication.call_as(socket, keys, mode, call.address.challenge, call.own_name, call.nonce)
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as error:
                raise ClusterError(
                    f"{call.name} cannot be reached at {endpoint}: {error.strerror}"
                ) from error
            with suppress(zmq.Again):  # refused already, as the monitor says
                socket.send(hello, zmq.NOBLOCK)
        except BaseException:
            self.close()
            raise

    def come_and_room(self) -> tuple[bool, bool]:
        """Whether an answer can be received, and something sent, from one look.

        That look takes in whatever the descriptor would tell.
        """
        return has_come_and_room(self.socket)

    def answer(self) -> list[bytes]:
        """An answer that has come."""
        return self.socket.recv_multipart()

    def hand_on(self, first: bytes, rest: Sequence[bytes | memoryview | zmq.Frame]) -> bool:
        """Give ZeroMQ a message; False where it has no room."""
        *before, last = first, *rest
        for _ in range(2):
            try:
                for one in before:
                    self.socket.send(one, _MORE)
                self.socket.send(last, zmq.NOBLOCK)
            except zmq.Again:
                # it looks only once a millisecond, and when it is asked, whether there is room again
                if not has_room(self.socket):
                    return False
            else:
                return True
        return False

    def ended(self) -> End | None:
        """What its monitor says became of it, as of one that was never answered; None while it stands."""
        end = None
        is_late = time.monotonic() - self._began > _PROMPT_SECONDS
        refusals = self._refusals & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL if is_late else self._refusals
        while has_come(self.monitor):
            said = self.monitor.recv_multipart()
            event = int.from_bytes(said[0][:2], "little")
            if event & refusals:
                end = End.REFUSED
            elif end is None:
                end = End.SILENT if is_late else End.ABSENT
        return end

    def close(self, linger: float = 0.0) -> None:
        """Hang up, after at most so many seconds in which what was sent leaves."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(int(1000 * linger))


def _travel_by_tcp(socket: zmq.Socket[bytes], endpoint: str, lost_seconds: float) -> None:
    socket.connect_timeout = round(1000 * min(_CONNECT_SECONDS, lost_seconds))
    socket.tcp_maxrt = round(1000 * lost_seconds)
    socket.tcp_keepalive, socket.tcp_keepalive_cnt = 1, _PROBES
    pause = max(1, round(lost_seconds / (_PROBES + 1)))
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = pause
    socket.ipv6 = "[" in endpoint
