"""The peers of an endpoint: how two endpoints connect, agree on a version, and lose each other.

Knows: hellos and their answers, connections in both directions, the tokens used. Does not know: messages,
waiting.

A *conversation* is a call and a call back. Each carries a nonce, and the call back names the call that it
answers.

    hello from a caller with a valid token              effect
    no common protocol version                          `REFUSAL`
    it answers a call of a conversation that is over    `GONE`
    its name is free                                    `WELCOME`; it is called back
    it was called, and has not called back yet          `WELCOME`: the conversation is complete
    it has called before, and answers nothing           the conversation is over, another begins
    another endpoint has its name                       that endpoint is lost, a conversation begins
    its name is reserved for a peer that is called      `GONE`; also if there are too many peers or no open
                                                          files left, and for a second name on one connection
    its name needs a proof, which it lacks              `GONE`
    only answers are accepted, and it answers nothing   `GONE`

Both ends learn that a conversation is over: a message reaches its receiver, or the sender gets `Lost`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import zmq

from cotswold.errors import ClusterError
from cotswold.host.open_files import can_open
from cotswold.transport import authentication
from cotswold.transport.address import Address
from cotswold.transport.authentication import KeySet
from cotswold.transport.frames import (
    GONE,
    REFUSAL,
    WELCOME,
    LossCause,
    Lost,
    MalformedFrameError,
    Message,
    Ready,
    head,
    split_head,
)
from cotswold.transport.handshake import Hello
from cotswold.transport.listener import Caller, EndpointListener, IncomingMessage
from cotswold.transport.listeners import Listeners
from cotswold.transport.outgoing import DESCRIPTORS, OutgoingConnection
from cotswold.transport.peer import LocalEndpoint, Peer
from cotswold.transport.poller import Poller
from cotswold.transport.protocol_versions import Versions
from cotswold.transport.shared_buffers import MemoryProbe

Event = Message | Lost | Ready
_MAX_PAIR_KEYS = 1 << 12
"""Number of names with pair keys, at most; the oldest is forgotten first."""
MAX_PEERS = 2500
"""Number of peers of an endpoint, at most; ZeroMQ uses several sockets for each."""
OLD_TOKEN_REASON = "its connection was made with a token that is not in use any more"


@dataclass(frozen=True)
class EndpointState:
    """State that the parts of an endpoint share."""

    context: zmq.Context[zmq.Socket[bytes]]
    poller: Poller = field(default_factory=Poller)
    events: deque[Event] = field(default_factory=deque)
    rejections: Counter[str] = field(default_factory=Counter)
    read: deque[tuple[str, int]] = field(default_factory=deque)
    """Blocks of peers' shared memory that nothing here refers to any more."""


class Peers:
    """The peers of an endpoint. ``local_endpoint`` returns its current description, ``read_all`` reads what
    has arrived."""

    def __init__(
        self,
        common: EndpointState,
        listeners: Listeners,
        ring: KeySet,
        local_endpoint: Callable[[], LocalEndpoint],
        read_all: Callable[[], None],
    ) -> None:
        self.of: dict[str, Peer] = {}
        """Peers that are connected or connecting, by name."""
        self.ring = ring
        """Keys for calls and answers."""
        self.versions = Versions.ours()
        self.reserved: set[str] = set()
        """Names that are reserved for peers that this process has called."""
        self.answer_only_names: set[str] = set()
        """Names that are accepted only as the answer to a call."""
        self.accepts_only_answers = False
        """True if only answers are accepted, for every name."""
        self._pairs: dict[str, str] = {}
        """Pair keys by which callers prove their names, by name."""
        self._common, self._listeners, self._local_endpoint, self._read_all = (
            common,
            listeners,
            local_endpoint,
            read_all,
        )

    def call(self, name: str, address: Address, answers: str = "") -> None:
        """Call a peer; raise ClusterError if it is on another host and has no port."""
        tokens = self.ring.for_fingerprint(address.fingerprint)
        peer = Peer(
            self._common.context, self._local_endpoint(), name, address, tokens, self._common.read, answers
        )
        self.of[name] = peer
        self._poll(peer)

    def drop(
        self, name: str, why: str, *, notify: bool = True, cause: LossCause = LossCause.OTHERWISE
    ) -> None:
        """Remove a peer, and notify it in case it is alive."""
        peer = self.of.pop(name)
        self._unpoll(peer.connection)
        peer.close()
        for listener, number in self._listeners.forget(name):
            if notify:
                self._send(listener, number, head(GONE, peer.version or self.versions.newest))
        self._common.events.append(Lost(name, why, cause))

    def require_proof(self, name: str, pair: str) -> None:
        """Require the pair key from callers of this name; drop a connected caller that lacks it."""
        self._pairs.pop(name, None)
        if not pair:
            return
        self._pairs[name] = pair
        if len(self._pairs) > _MAX_PAIR_KEYS:
            del self._pairs[next(iter(self._pairs))]
        if name in self.of and self._listeners.has_called(name) and not self.has_proved(name, pair):
            self._common.rejections["strangers"] += 1
            self.drop(name, "it has not proved its name")

    def has_proved(self, name: str, pair: str) -> bool:
        """True if a caller has connected under this name, and proved it with the pair key."""
        callers = [each for each in self._listeners.callers if each.name == name]
        return bool(callers) and all(each.hello.is_proved(pair) for each in callers)

    def drop_for_version(self, peer: Peer, theirs: Versions) -> None:
        """Drop a peer that speaks no common version, or says so."""
        self._common.rejections["version"] += 1
        self.drop(peer.name, self.versions.refusal(theirs), notify=False)

    def rotate(self, ring: KeySet) -> None:
        """Use other tokens: drop peers that are connected, in either direction, with a token that left the
        ring."""
        self.ring = ring
        self._read_all()
        old = {name for name, peer in self.of.items() if ring.named(peer.keys.fingerprint) is None}
        old |= {each.name for each in self._listeners.callers if ring.named(each.fingerprint) is None}
        for name in old & self.of.keys():
            self.drop(name, OLD_TOKEN_REASON, cause=LossCause.OLD_TOKEN)

    # --- outgoing calls ---

    def _poll(self, peer: Peer) -> None:
        """Poll the peer's current connection."""
        readiness, connection = self._common.poller, peer.connection
        readiness.add_socket(connection.descriptor, partial(self._on_readable, peer))
        readiness.add_socket(connection.monitor_descriptor, partial(self._check_connection, peer))

    def _unpoll(self, connection: OutgoingConnection) -> None:
        self._common.poller.remove(connection.descriptor)
        self._common.poller.remove(connection.monitor_descriptor)

    def _on_readable(self, peer: Peer) -> None:
        """Handle the answers of a called process, and space for more messages."""
        while self.of.get(peer.name) is peer and (said := peer.answer()) is not None:
            try:
                self._on_answer(peer, said)
            except MalformedFrameError:
                self._common.rejections["malformed"] += 1

    def _on_answer(self, peer: Peer, said: Sequence[bytes]) -> None:
        """Handle one answer; raise MalformedFrameError."""
        kind, version, rest = split_head(said[0])
        if kind == GONE:
            self.drop(peer.name, "it dropped this process", notify=False)
        elif kind == REFUSAL:
            self.drop_for_version(peer, Versions.read(version, rest))
        elif kind != WELCOME or len(said) != 3:
            raise MalformedFrameError("no answer")
        elif not authentication.is_welcome(peer.keys, said[1], peer.nonce, peer.name):
            self._common.rejections["strangers"] += 1
            self.drop(
                peer.name,
                "another process answers at its address",
                notify=False,
                cause=LossCause.UNAUTHENTICATED,
            )
        elif not self.versions.supports(version):
            self.drop_for_version(peer, Versions(version, version))
        else:
            peer.on_authenticated(version, shared=said[2] == b"1" and peer.address.is_local)

    def _check_connection(self, peer: Peer) -> None:
        """Check if a peer's connection has ended."""
        if self.of.get(peer.name) is not peer or (end := peer.connection.end_cause()) is None:
            return
        self._read_all()  # what it sent before the end
        if self.of.get(peer.name) is not peer:
            return
        before = peer.connection
        if end is LossCause.REFUSED and peer.call_with_next_token():
            self._unpoll(before)
            self._poll(peer)
            return
        self.drop(peer.name, peer.loss_reason(end), cause=peer.loss_cause(end))

    # --- incoming calls ---

    def on_hello(
        self, listener: EndpointListener, message: IncomingMessage, version: int, packed: memoryview
    ) -> None:
        """Handle the hello of a caller with a valid token; raise MalformedFrameError."""
        hello, settled = self._read_hello(version, packed)
        if hello is None or settled is None:
            self._common.rejections["version"] += 1
            self.refuse_version(listener, message.number)
            return
        keys = self.ring.named(message.fingerprint)
        if hello.to == self._local_endpoint().name and self._is_impostor(listener, message, hello):
            self._common.rejections["strangers"] += 1
            self._send(listener, message.number, head(GONE, settled))
            return
        if keys is None or self._is_stale_answer(hello):
            self._send(listener, message.number, head(GONE, settled))
            return
        shared = hello.address.is_local and MemoryProbe.is_mapped(hello.address.process, hello.probe)
        answer = authentication.welcome_signature(keys, hello.nonce, self._local_endpoint().name)
        self._send(listener, message.number, head(WELCOME, settled), answer, b"1" if shared else b"0")
        if hello.to == self._local_endpoint().name:  # otherwise the caller notices from the answer
            self._accept(listener, message, hello)

    def refuse_version(self, listener: EndpointListener, number: bytes) -> None:
        """Send the versions spoken here to a caller."""
        self._send(listener, number, self.versions.packed)

    def _read_hello(self, version: int, packed: memoryview) -> tuple[Hello | None, int | None]:
        """A hello and the agreed version; None for each that is missing."""
        try:
            hello = Hello.read(packed)
        except MalformedFrameError:
            if self.versions.supports(version):
                raise
            return None, None  # a hello of another version may have another form
        return hello, self.versions.agreed(Versions.from_hello(version, hello.oldest))

    def _is_impostor(self, listener: EndpointListener, came: IncomingMessage, hello: Hello) -> bool:
        """True for a caller that takes a name which it has not signed, a second name, or one name too
        many."""
        if came.signature and came.signature != authentication.signature_text(hello.nonce, hello.name):
            return True
        known, caller = self.of.get(hello.name), listener.callers.get(came.number)
        if caller is not None and caller.name != hello.name:
            return True
        pair = self._pairs.get(hello.name)
        if pair is not None and not hello.is_proved(pair):
            return True
        if self.accepts_only_answers or hello.name in self.answer_only_names:
            return not hello.answers  # `_is_stale_answer` checks answers
        if hello.name not in self.reserved:
            return known is None and (len(self.of) >= MAX_PEERS or not can_open(DESCRIPTORS))
        is_answer = known is not None and known.nonce == hello.answers
        # addresses are not secret: the same address may call at the same moment, but takes no occupied place
        may_be_it = known is not None and known.address.is_same(hello.address)
        return not is_answer and (not may_be_it or self._listeners.has_called(hello.name))

    def _is_stale_answer(self, hello: Hello) -> bool:
        """True if it answers a call of a conversation that is over."""
        known = self.of.get(hello.name)
        return bool(hello.answers) and (known is None or known.nonce != hello.answers)

    def _accept(self, listener: EndpointListener, came: IncomingMessage, hello: Hello) -> None:
        """Accept a peer's call: its first, a call back, or a new one."""
        name, address = hello.name, hello.address
        known = self.of.get(name)
        if known is not None:
            if not (known.address.is_port_only or known.address.is_same(address)):
                self.drop(name, "another process has its name now")
            elif self._listeners.has_called(name) and not hello.answers:
                self.drop(name, "it connected again")
            else:
                known.on_called_back(address)
        self._listeners.forget(name)
        listener.callers[came.number] = Caller(name, came.fingerprint, hello)
        if name not in self.of:
            try:
                self.call(name, address, hello.nonce)
            except ClusterError as error:
                self._common.events.append(Lost(name, str(error)))

    def _send(self, listener: EndpointListener, number: bytes, *frames: bytes) -> None:
        listener.send(number, frames)
        self._common.poller.recheck(listener.descriptor)
