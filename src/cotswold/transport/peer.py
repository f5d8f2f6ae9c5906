"""One peer of an endpoint: its connection, its unsent messages, its shared memory.

Knows: the messages to one peer, the tokens tried. Does not know: other peers, the meaning of messages.

A connection that ends never reconnects: the peer is lost. So a message reaches the process that
authenticated itself, or no process. Only before anything was sent, a peer that refuses one token is called
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
    Header,
    LossCause,
    Packed,
    head,
    pack,
    pack_data,
    to_frames,
)
from cotswold.transport.handshake import Hello
from cotswold.transport.outgoing import OutgoingCall, OutgoingConnection
from cotswold.transport.protocol_versions import Versions
from cotswold.transport.shared_buffers import MIN_BYTES, BufferReceiver, BufferSender

LOST_SECONDS = 30.0
"""Seconds until a host that does not acknowledge TCP data counts as lost."""


@dataclass
class EndpointTraffic:
    """Messages and bytes that an endpoint sent and received; ``shared`` counts bytes in shared memory."""

    sent_messages: int = 0
    sent_bytes: int = 0
    sent_shared_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0
    received_shared_bytes: int = 0


@dataclass(frozen=True)
class LocalEndpoint:
    """An endpoint's description of itself for the peers that it calls."""

    name: str
    address: Address
    versions: Versions
    probe: int
    """Descriptor of a block that they may try to map."""
    lost_seconds: float = LOST_SECONDS
    key: str = ""
    """The secret by which the endpoint proves its name; empty for none."""

    def proof(self, nonce: str, to: str) -> str:
        """The proof of its name in a call to ``to``; empty without a key."""
        return self.key and names.proof(names.pair_key(self.key, to), nonce, self.name, str(self.address))


@dataclass(frozen=True)
class _QueuedMessage:
    """A message that is not sent yet; its protocol version may be unknown."""

    kind: bytes
    body: bytes
    frames: Sequence[zmq.Frame]

    @property
    def bytes_total(self) -> int:
        return len(self.body) + sum(map(len, self.frames))


class Peer:
    """A called peer; must be closed. The owner polls the two descriptors of `connection`, which
    `call_with_next_token` replaces.

    ``tokens`` are tried in turn; ``answers`` is the nonce of the call that this one answers.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        local_endpoint: LocalEndpoint,
        name: str,
        address: Address,
        tokens: Sequence[Keys],
        read: deque[tuple[str, int]],
        answers: str = "",
    ) -> None:
        self.name, self.address = name, address
        self.nonce = authentication.new_nonce()
        self.label = f"{name}@{self.nonce}"
        """Unique name of this connection, even if another process takes the peer's name later."""
        self.version: int | None = None
        """The agreed protocol version; None until the peer has authenticated itself."""
        self.keys, *untried = tokens
        """Keys of the token that is used."""
        self._next_tokens = deque(untried)
        self._tokens = len(tokens)
        self._is_shared = False
        self._queue: deque[_QueuedMessage] = deque()
        self._queued_bytes = 0
        self.buffer_sender = BufferSender()
        self._read = read
        self.buffer_receiver = BufferReceiver(self.label, address.process, read)
        self._context = context
        hello = Hello(
            *(local_endpoint.name, local_endpoint.address, self.nonce, name, local_endpoint.probe),
            oldest=local_endpoint.versions.oldest,
            answers=answers,
            proof=local_endpoint.proof(self.nonce, name),
        )
        self._hello = head(HELLO, local_endpoint.versions.newest) + hello.packed
        self._call = OutgoingCall(local_endpoint.name, self.nonce, name, address, local_endpoint.lost_seconds)
        try:
            self.connection = self._connected()
        except BaseException:
            self.buffer_sender.close()
            raise

    def _connected(self) -> OutgoingConnection:
        return OutgoingConnection(self._context, self._call, self.keys, self._hello)

    @property
    def is_authenticated(self) -> bool:
        """True if the peer has authenticated itself."""
        return self.version is not None

    def call_with_next_token(self) -> bool:
        """Call the peer with the next token, after it refused one; return False if none is left.

        Raises ClusterError as the first call does.
        """
        if self.is_authenticated or not self._next_tokens:
            return False
        refused, self.keys = self.connection, self._next_tokens.popleft()
        self.connection = self._connected()
        refused.close()
        return True

    def on_called_back(self, address: Address) -> None:
        """The peer called back with its address: only its port was known, or its address has changed."""
        if self.address.is_port_only:
            self.buffer_receiver = BufferReceiver(self.label, address.process, self._read)
        self.address = address
        self._call = replace(self._call, address=address)

    @property
    def unread_bytes(self) -> int:
        """Bytes that the peer has not read."""
        return self._queued_bytes + self.buffer_sender.in_use_bytes

    def on_authenticated(self, version: int, *, shared: bool) -> None:
        """The peer authenticated itself, speaks this version, and ``shared`` says if it maps this
        process's memory."""
        self.version, self._is_shared = version, shared

    def send(self, header: Header | Packed, buffers: Sequence[memoryview], traffic: EndpointTraffic) -> None:
        """Send a message now, or when the peer can take it; the buffers may change afterwards."""
        sizes = [one.nbytes for one in buffers]
        traffic.sent_messages += 1
        if self._is_shared and sum(sizes) >= MIN_BYTES:
            try:
                loan = self.buffer_sender.place(buffers)
            except OSError:  # no memory or descriptors left: use the socket instead
                self._is_shared = False
            else:
                traffic.sent_shared_bytes += sum(sizes)
                place = [loan.number, loan.descriptor, loan.block_bytes]
                self._send(DATA, pack_data(header, sizes, place), (), traffic)
                if dropped := self.buffer_sender.drop_surplus():
                    self._send(MEMORY, pack([[], dropped]), (), traffic)
                return
        self._send(DATA, pack_data(header, sizes), to_frames(buffers, sizes), traffic)

    def reserve(self, count: int) -> memoryview | None:
        """Return memory of a message that the peer maps; None if it would go through the socket."""
        if not self._is_shared or count < MIN_BYTES:
            return None
        try:
            return self.buffer_sender.reserve(count)
        except OSError:  # no memory or descriptors left
            return None

    def return_blocks(self, blocks: Sequence[int], traffic: EndpointTraffic) -> None:
        """Tell the peer which of its blocks are free again."""
        self._send(MEMORY, pack([blocks, []]), (), traffic)

    def on_memory_message(self, returned: Sequence[int], dropped: Sequence[int]) -> None:
        """The peer returned blocks, or dropped blocks that it owns; raise MalformedFrameError."""
        for number in returned:
            self.buffer_sender.release(number)
        for number in dropped:
            self.buffer_receiver.drop(number)

    def flush(self) -> bool:
        """Send queued messages as far as there is space; return True if any were sent."""
        waited = len(self._queue)
        while self._queue and self.version is not None:
            next_ = self._queue[0]
            if not self.connection.send(head(next_.kind, self.version) + next_.body, next_.frames):
                break
            self._queued_bytes -= self._queue.popleft().bytes_total
        return len(self._queue) < waited

    def answer(self) -> list[bytes] | None:
        """Return the peer's answer, after sending queued messages; None without one.

        Only after None does the descriptor signal an answer, or space for queued messages. Both must come
        from the same query of the socket, because the query consumes what the descriptor would signal.
        """
        while True:
            come, room = self.connection.poll()
            if not (room and self.flush()):
                return self.connection.answer() if come else None

    @property
    def has_unsent(self) -> bool:
        """True if messages are queued here."""
        return bool(self._queue)

    def loss_cause(self, end: LossCause) -> LossCause:
        """The reason of the end; `LossCause.OTHERWISE` if the peer had authenticated itself."""
        return LossCause.OTHERWISE if self.is_authenticated else end

    def loss_reason(self, end: LossCause) -> str:
        """The reason of the end, in words that follow the peer's name."""
        if self.loss_cause(end) is LossCause.REFUSED:
            tokens = (
                "the token of this run" if self._tokens == 1 else f"all {self._tokens} tokens of this process"
            )
            return f"it refused {tokens}"
        return "its connection ended" if self.is_authenticated else "it does not answer at its address"

    def close(self, linger: float = 0.0) -> None:
        """Disconnect; wait up to ``linger`` seconds for sent messages to leave."""
        self.connection.close(linger)
        self.buffer_sender.close()

    def _send(
        self, kind: bytes, body: bytes, rest: Sequence[bytes | memoryview], traffic: EndpointTraffic
    ) -> None:
        traffic.sent_bytes += 2 + len(body) + sum(map(len, rest))
        is_next = self.version is not None and not self._queue
        if is_next and self.connection.send(head(kind, self.version or 0) + body, rest):
            return
        kept = _QueuedMessage(kind, body, [zmq.Frame(one, copy=True) for one in rest])  # copied only once
        self._queue.append(kept)
        self._queued_bytes += kept.bytes_total
