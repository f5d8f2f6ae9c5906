"""One peer as an endpoint has it: the connection to it, what waits to be sent, shared memory.

Knows: what was said to one peer, with which tokens it was called. Does not know: other peers, what messages
mean.

A connection that ends is never made again by itself: then the peer is lost. So what is sent reaches the
process that proved itself, or nobody. Only before anything was sent a peer that refuses one token is called
with the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import zmq

from cotswold.transport import authentication, names
from cotswold.transport.address import Address
from cotswold.transport.authentication import Keys
from cotswold.transport.frames import (
    DATA,
    HELLO,
    MEMORY,
    End,
    Header,
    Packed,
    framed,
    head,
    pack,
    pack_data,
)
from cotswold.transport.handshake import Hello
from cotswold.transport.outgoing import Call, Connection
from cotswold.transport.shared_buffers import LEAST_BYTES, Borrower, Lender
from cotswold.transport.versions import Versions

LOST_SECONDS = 30.0
"""After how long a host that does not acknowledge what TCP sends is taken for gone."""


@dataclass
class Traffic:
    """What an endpoint has sent and received; ``shared`` are bytes in shared memory, which no wire sees."""

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_shared_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    received_shared_bytes: int = 0


@dataclass(frozen=True)
class Own:
    """What an endpoint says of itself to those whom it calls."""

    name: str
    address: Address
    versions: Versions
    probe: int
    """The descriptor of a block that they may try to map."""
    lost_seconds: float = LOST_SECONDS
    key: str = ""
    """The secret by which it proves its name; empty for none."""

    def proof(self, nonce: str, to: str) -> str:
        """The proof of its name in a call to ``to``; empty without a key."""
        return self.key and names.proof(names.pair_key(self.key, to), nonce, self.name, str(self.address))


@dataclass(frozen=True)
class _Waiting:
    """A message that is not handed on yet; which version it is sent in may not be known either."""

    kind: bytes
    body: bytes
    rest: Sequence[zmq.Frame]

    @property
    def bytes_total(self) -> int:
        return len(self.body) + sum(map(len, self.rest))


class Peer:
    """A peer that is called; to be closed. Whoever made it reads the two descriptors of its `connection`,
    which is another one after `called_again`.

    ``tokens`` are tried in turn; ``answers`` is the nonce of the call which this one answers.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        own: Own,
        name: str,
        address: Address,
        tokens: Sequence[Keys],
        read: deque[tuple[str, int]],
        answers: str = "",
    ) -> None:
        self.name, self.address = name, address
        self.nonce = authentication.new_nonce()
        self.label = f"{name}@{self.nonce}"
        """The name of this process alone, whoever has the peer's name later."""
        self.version: int | None = None
        """Of the protocol, on which both have settled; None until the peer has proved itself."""
        self.keys, *untried = tokens
        """Of the token with which it is called."""
        self._untried = deque(untried)
        self._tokens = len(tokens)
        self._is_shared = False
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self.lender = Lender()
        self._read = read
        self.borrower = Borrower(self.label, address.process, read)
        self._context = context
        hello = Hello(
            *(own.name, own.address, self.nonce, name, own.probe),
            oldest=own.versions.oldest,
            answers=answers,
            proof=own.proof(self.nonce, name),
        )
        self._hello = head(HELLO, own.versions.newest) + hello.packed
        self._call = Call(own.name, self.nonce, name, address, own.lost_seconds)
        try:
            self.connection = self._connected()
        except BaseException:
            self.lender.close()
            raise

    def _connected(self) -> Connection:
        return Connection(self._context, self._call, self.keys, self._hello)

    @property
    def is_welcome(self) -> bool:
        """Whether the peer proved itself."""
        return self.version is not None

    def called_again(self) -> bool:
        """It refused the token: it is called with the next; False where there is none.

        Raises ClusterError as the first call does.
        """
        if self.is_welcome or not self._untried:
            return False
        refused, self.keys = self.connection, self._untried.popleft()
        self.connection = self._connected()
        refused.close()
        return True

    def met(self, address: Address) -> None:
        """It called back, and says where it is reached: its port alone was known, or that is another now."""
        if self.address.is_port_alone:
            self.borrower = Borrower(self.label, address.process, self._read)
        self.address = address
        self._call = replace(self._call, address=address)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the peer has not taken."""
        return self._waiting_bytes + self.lender.lent_bytes

    def welcomed(self, version: int, *, shared: bool) -> None:
        """The peer proved itself, and speaks this version; whether it maps this process's memory."""
        self.version, self._is_shared = version, shared

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
                self._send(DATA, pack_data(header, sizes, place), (), traffic)
                if dropped := self.lender.drop_surplus():
                    self._send(MEMORY, pack([[], dropped]), (), traffic)
                return
        self._send(DATA, pack_data(header, sizes), framed(buffers, sizes), traffic)

    def give_back(self, blocks: Sequence[int], traffic: Traffic) -> None:
        """Tell the peer which of its blocks are read."""
        self._send(MEMORY, pack([blocks, []]), (), traffic)

    def heard_of_memory(self, given_back: Sequence[int], dropped: Sequence[int]) -> None:
        """The peer gave blocks back, or uses some of its own no more; raises MalformedError."""
        for number in given_back:
            self.lender.give_back(number)
        for number in dropped:
            self.borrower.drop(number)

    def flush(self) -> bool:
        """Hand on what waits, as far as there is room; whether anything was."""
        waited = len(self._waiting)
        while self._waiting and self.version is not None:
            next_ = self._waiting[0]
            if not self.connection.hand_on(head(next_.kind, self.version) + next_.body, next_.rest):
                break
            self._waiting_bytes -= self._waiting.popleft().bytes_total
        return len(self._waiting) < waited

    def heard(self) -> list[bytes] | None:
        """What it answered, after what waits was handed on; None where it did not.

        Only after None the descriptor tells of an answer, and of room for what waits: both must be read from
        one and the same look at the socket, for the look takes in whatever the descriptor would tell.
        """
        while True:
            come, room = self.connection.come_and_room()
            if not (room and self.flush()):
                return self.connection.answer() if come else None

    @property
    def has_unsent(self) -> bool:
        """Whether something waits here."""
        return bool(self._waiting)

    def how_ended(self, end: End) -> End:
        """The same, unless the peer had proved itself: its connection ended then, whatever became of it."""
        return End.OTHERWISE if self.is_welcome else end

    def why_ended(self, end: End) -> str:
        """What became of the connection, in words."""
        if self.how_ended(end) is End.REFUSED:
            tokens = (
                "the token of this run" if self._tokens == 1 else f"all {self._tokens} tokens of this process"
            )
            return f"it refused {tokens}"
        return "its connection ended" if self.is_welcome else "it does not answer at its address"

    def close(self, linger: float = 0.0) -> None:
        """Hang up, after at most so many seconds in which what was sent leaves."""
        self.connection.close(linger)
        self.lender.close()

    def _send(self, kind: bytes, body: bytes, rest: Sequence[bytes | memoryview], traffic: Traffic) -> None:
        traffic.sent_bytes += 2 + len(body) + sum(map(len, rest))
        is_next = self.version is not None and not self._waiting
        if is_next and self.connection.hand_on(head(kind, self.version or 0) + body, rest):
            return
        kept = _Waiting(kind, body, [zmq.Frame(one, copy=True) for one in rest])  # which are copied no more
        self._waiting.append(kept)
        self._waiting_bytes += kept.bytes_total
