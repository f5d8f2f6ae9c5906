"""One peer as an endpoint has it: the connection to it, what waits to be sent, shared memory.

Knows: one ZeroMQ connection and its monitor. Does not know: other peers, what messages mean.

A connection is never made again by itself: when it ends, the peer is lost. So what is sent reaches the
process that proved itself, or nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import zmq

from cotswold.cluster.transport import authentication
from cotswold.cluster.transport.address import Address
from cotswold.cluster.transport.authentication import Keys
from cotswold.cluster.transport.frames import DATA, HELLO, MEMORY, Header, Packed, framed, pack, pack_data
from cotswold.cluster.transport.hello import Hello
from cotswold.cluster.transport.loans import LEAST_BYTES, Borrower, Lender
from cotswold.cluster.transport.sockets import MESSAGES_AHEAD, REFUSED, has_come, has_come_and_room, has_room
from cotswold.errors import ClusterError

_CONNECT_SECONDS = 20.0
"""How long a connection is tried."""
LOST_SECONDS = 30.0
"""After how long a host that does not acknowledge what TCP sends is taken for gone."""
_PROBES = 4
"""Questions, evenly spread over that time, to a host to which nothing is sent."""
_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass
class Traffic:
    """What an endpoint has sent and received; ``shared`` are bytes in shared memory, which no wire sees."""

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_shared_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    received_shared_bytes: int = 0


class Peer:
    """A peer that is called; to be closed. Whoever made it reads its two sockets."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: Keys,
        own_name: str,
        own_address: Address,
        name: str,
        address: Address,
        probe: int,
        read: deque[tuple[str, int]],
        lost_seconds: float = LOST_SECONDS,
    ) -> None:
        self.name, self.address = name, address
        self.nonce = authentication.new_nonce()
        self.label = f"{name}@{self.nonce}"
        """The name of this process alone, whoever has the peer's name later."""
        self.is_welcome = False
        self._is_shared = False
        self._waiting: deque[list[zmq.Frame]] = deque()
        self._waiting_bytes = 0
        self.lender = Lender()
        self._read = read
        self.borrower = Borrower(self.label, address.process, read)
        endpoint, mode = address.way
        # whoever is called by *hmac* says why it refuses: it may end meanwhile, and that is no refusal
        self._refusals = REFUSED if mode == "curve" else REFUSED & ~zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        self.socket = context.socket(zmq.DEALER)
        self.monitor = self.socket.get_monitor_socket(_ENDED | REFUSED)
        self.descriptor, self.monitor_descriptor = self.socket.FD, self.monitor.FD
        try:
            socket = self.socket
            socket.linger = 0
            socket.sndhwm = socket.rcvhwm = MESSAGES_AHEAD
            socket.maxmsgsize = 1 << 16
            socket.reconnect_ivl = -1
            if endpoint.startswith("tcp"):
                socket.connect_timeout = round(1000 * min(_CONNECT_SECONDS, lost_seconds))
                socket.tcp_maxrt = round(1000 * lost_seconds)
                socket.tcp_keepalive, socket.tcp_keepalive_cnt = 1, _PROBES
                pause = max(1, round(lost_seconds / (_PROBES + 1)))
                socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = pause
                socket.ipv6 = "[" in endpoint
            authentication.call_as(socket, keys, mode, address.challenge, own_name, self.nonce)
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as error:
                raise ClusterError(f"{name} cannot be reached at {endpoint}: {error.strerror}") from error
            hello = Hello(own_name, own_address, self.nonce, name, probe)
            with suppress(zmq.Again):  # refused already, as the monitor says
                socket.send(HELLO + hello.packed, zmq.NOBLOCK)
        except BaseException:
            self.close()
            raise

    def met(self, address: Address) -> None:
        """It called back, and says where else it is reached: until now its port alone was known."""
        self.address = address
        self.borrower = Borrower(self.label, address.process, self._read)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the peer has not taken."""
        return self._waiting_bytes + self.lender.lent_bytes

    def welcomed(self, *, shared: bool) -> None:
        """The peer proved itself; whether it maps this process's memory."""
        self.is_welcome, self._is_shared = True, shared

    def send(self, header: Header | Packed, buffers: Sequence[memoryview], traffic: Traffic) -> None:
        """Send a message, now or when the peer takes it; afterwards buffers may change."""
        sizes = [one.nbytes for one in buffers]
        traffic.sent_messages += 1
        if self._is_shared and sum(sizes) >= LEAST_BYTES:
            try:
                loan = self.lender.lend(buffers)
            except OSError:  # no memory or descriptor left: the socket takes it as well
                self._is_shared = False
            else:
                traffic.sent_shared_bytes += sum(sizes)
                place = [loan.number, loan.descriptor, loan.block_bytes]
                self._send([DATA + pack_data(header, sizes, place)], traffic)
                if dropped := self.lender.drop_surplus():
                    self._send([MEMORY + pack([[], dropped])], traffic)
                return
        self._send([DATA + pack_data(header, sizes), *framed(buffers, sizes)], traffic)

    def give_back(self, blocks: Sequence[int], traffic: Traffic) -> None:
        """Tell the peer which of its blocks are read."""
        self._send([MEMORY + pack([blocks, []])], traffic)

    def heard_of_memory(self, given_back: Sequence[int], dropped: Sequence[int]) -> None:
        """The peer gave blocks back, or uses some of its own no more; raises MalformedError."""
        for number in given_back:
            self.lender.give_back(number)
        for number in dropped:
            self.borrower.drop(number)

    def flush(self) -> bool:
        """Hand on what waits, as far as there is room; whether anything was."""
        waited = len(self._waiting)
        while self._waiting and self.is_welcome and self._hand_on(self._waiting[0]):
            self._waiting_bytes -= sum(map(len, self._waiting.popleft()))
        return len(self._waiting) < waited

    def heard(self) -> list[bytes] | None:
        """What it answered, after what waits was handed on; None where it did not.

        Only after None the descriptor tells of an answer, and of room for what waits: both must be read from
        one and the same look at the socket, for the look takes in whatever the descriptor would tell.
        """
        while True:
            come, room = has_come_and_room(self.socket)
            if not (room and self.flush()):
                return self.socket.recv_multipart() if come else None

    @property
    def has_unsent(self) -> bool:
        """Whether something waits here."""
        return bool(self._waiting)

    def why_ended(self) -> str | None:
        """Why the connection ended, as its monitor says; None while it stands."""
        why = None
        while has_come(self.monitor):
            said = self.monitor.recv_multipart()
            event = int.from_bytes(said[0][:2], "little")
            if event & self._refusals:
                why = "it refused the token of this run"
            elif why is None:
                why = "its connection ended" if self.is_welcome else "it does not answer at its address"
        return why

    def close(self, linger: float = 0.0) -> None:
        """Hang up, after at most so many seconds in which what was sent leaves."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(int(1000 * linger))
        self.lender.close()

    def _send(self, frames: Sequence[bytes | memoryview], traffic: Traffic) -> None:
        traffic.sent_bytes += sum(map(len, frames))
        if self.is_welcome and not self._waiting and self._hand_on(frames):
            return
        kept = [zmq.Frame(one, copy=True) for one in frames]  # of ZeroMQ's own, which copies it no more
        self._waiting.append(kept)
        self._waiting_bytes += sum(map(len, kept))

    def _hand_on(self, frames: Sequence[bytes | memoryview | zmq.Frame]) -> bool:
        """Give ZeroMQ a message; False where it has no room."""
        *before, last = frames
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
