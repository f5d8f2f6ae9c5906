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
    MalformedError,
    Message,
    Ready,
    head,
    split_head,
)
from cotswold.transport.handshake import Hello
from cotswold.transport.listener import Caller, IncomingMessage, Listener
from cotswold.transport.listeners import Listeners
from cotswold.transport.outgoing import DESCRIPTORS, Connection
from cotswold.transport.peer import LocalEndpoint, Peer
from cotswold.transport.poller import Poller
from cotswold.transport.shared_buffers import Probe
from cotswold.transport.versions import Versions

Event = Message | Lost | Ready
_VOUCHED = 1 << 12
"""Number of names with pair keys, at most; the oldest is forgotten first."""
MOST_PEERS = 2500
"""Number of peers of an endpoint, at most; ZeroMQ uses several sockets for each."""
OLD_TOKEN = "its connection was made with a token that is not in use any more"


@dataclass(frozen=True)
class EndpointState:
    """State that the parts of an endpoint share."""

    context: zmq.Context[zmq.Socket[bytes]]
    readiness: Poller = field(default_factory=Poller)
    events: deque[Event] = field(default_factory=deque)
    refused: Counter[str] = field(default_factory=Counter)
    read: deque[tuple[str, int]] = field(default_factory=deque)
    """Blocks of peers' shared memory that nothing here refers to any more."""


class Peers:
    """The peers of an endpoint. ``own`` returns its current description, ``take_in`` reads what has
    arrived."""

    def __init__(
        self,
        common: EndpointState,
        listeners: Listeners,
        ring: KeySet,
        own: Callable[[], LocalEndpoint],
        take_in: Callable[[], None],
    ) -> None:
        self.of: dict[str, Peer] = {}
        """Peers that are connected or connecting, by name."""
        self.ring = ring
        """Keys for calls and answers."""
        self.versions = Versions.ours()
        self.kept: set[str] = set()
        """Names that are reserved for peers that this process has called."""
        self.answering: set[str] = set()
        """Names that are accepted only as the answer to a call."""
        self.admits_answers_only = False
        """True if only answers are accepted, for every name."""
        self._pairs: dict[str, str] = {}
        """Pair keys by which callers prove their names, by name."""
        self._common, self._listeners, self._own, self._take_in = common, listeners, own, take_in

    def call(self, name: str, address: Address, answers: str = "") -> None:
        """Call a peer; raise ClusterError if it is on another host and has no port."""
        tokens = self.ring.towards(address.fingerprint)
        peer = Peer(self._common.context, self._own(), name, address, tokens, self._common.read, answers)
        self.of[name] = peer
        self._look_at(peer)

    def lose(self, name: str, why: str, *, tell: bool = True, end: LossCause = LossCause.OTHERWISE) -> None:
        """Remove a peer, and notify it in case it is alive."""
        peer = self.of.pop(name)
        self._look_away(peer.connection)
        peer.close()
        for listener, number in self._listeners.forget(name):
            if tell:
                self._tell(listener, number, head(GONE, peer.version or self.versions.newest))
        self._common.events.append(Lost(name, why, end))

    def vouch(self, name: str, pair: str) -> None:
        """Require the pair key from callers of this name; drop a connected caller that lacks it."""
        self._pairs.pop(name, None)
        if not pair:
            return
        self._pairs[name] = pair
        if len(self._pairs) > _VOUCHED:
            del self._pairs[next(iter(self._pairs))]
        if name in self.of and self._listeners.has_called(name) and not self.has_proved(name, pair):
            self._common.refused["strangers"] += 1
            self.lose(name, "it has not proved its name")

    def has_proved(self, name: str, pair: str) -> bool:
        """True if a caller has connected under this name, and proved it with the pair key."""
        callers = [each for each in self._listeners.callers if each.name == name]
        return bool(callers) and all(each.hello.is_proved(pair) for each in callers)

    def lose_by_version(self, peer: Peer, theirs: Versions) -> None:
        """Drop a peer that speaks no common version, or says so."""
        self._common.refused["version"] += 1
        self.lose(peer.name, self.versions.refusal(theirs), tell=False)

    def rotate(self, ring: KeySet) -> None:
        """Use other tokens: drop peers that are connected, in either direction, with a token that left the
        ring."""
        self.ring = ring
        self._take_in()
        old = {name for name, peer in self.of.items() if ring.named(peer.keys.fingerprint) is None}
        old |= {each.name for each in self._listeners.callers if ring.named(each.fingerprint) is None}
        for name in old & self.of.keys():
            self.lose(name, OLD_TOKEN, end=LossCause.OLD_TOKEN)

    # --- outgoing calls ---

    def _look_at(self, peer: Peer) -> None:
        """Poll the peer's current connection."""
        readiness, connection = self._common.readiness, peer.connection
        readiness.add_socket(connection.descriptor, partial(self._hear, peer))
        readiness.add_socket(connection.monitor_descriptor, partial(self._look_after, peer))

    def _look_away(self, connection: Connection) -> None:
        self._common.readiness.remove(connection.descriptor)
        self._common.readiness.remove(connection.monitor_descriptor)

    def _hear(self, peer: Peer) -> None:
        """Handle the answers of a called process, and space for more messages."""
        while self.of.get(peer.name) is peer and (said := peer.heard()) is not None:
            try:
                self._answered(peer, said)
            except MalformedError:
                self._common.refused["malformed"] += 1

    def _answered(self, peer: Peer, said: Sequence[bytes]) -> None:
        """Handle one answer; raise MalformedError."""
        kind, version, rest = split_head(said[0])
        if kind == GONE:
            self.lose(peer.name, "it dropped this process", tell=False)
        elif kind == REFUSAL:
            self.lose_by_version(peer, Versions.read(version, rest))
        elif kind != WELCOME or len(said) != 3:
            raise MalformedError("no answer")
        elif not authentication.is_welcome(peer.keys, said[1], peer.nonce, peer.name):
            self._common.refused["strangers"] += 1
            self.lose(peer.name, "another process answers at its address", tell=False, end=LossCause.STRANGER)
        elif not self.versions.speaks(version):
            self.lose_by_version(peer, Versions(version, version))
        else:
            peer.welcomed(version, shared=said[2] == b"1" and peer.address.is_here)

    def _look_after(self, peer: Peer) -> None:
        """Check if a peer's connection has ended."""
        if self.of.get(peer.name) is not peer or (end := peer.connection.ended()) is None:
            return
        self._take_in()  # what it sent before the end
        if self.of.get(peer.name) is not peer:
            return
        before = peer.connection
        if end is LossCause.REFUSED and peer.call_with_next_token():
            self._look_away(before)
            self._look_at(peer)
            return
        self.lose(peer.name, peer.loss_reason(end), end=peer.loss_cause(end))

    # --- incoming calls ---

    def greet(self, listener: Listener, came: IncomingMessage, version: int, packed: memoryview) -> None:
        """Handle the hello of a caller with a valid token; raise MalformedError."""
        hello, settled = self._settled(version, packed)
        if hello is None or settled is None:
            self._common.refused["version"] += 1
            self.refuse_version(listener, came.number)
            return
        keys = self.ring.named(came.fingerprint)
        if hello.to == self._own().name and self._is_another(listener, came, hello):
            self._common.refused["strangers"] += 1
            self._tell(listener, came.number, head(GONE, settled))
            return
        if keys is None or self._is_over(hello):
            self._tell(listener, came.number, head(GONE, settled))
            return
        shared = hello.address.is_here and Probe.is_mapped(hello.address.process, hello.probe)
        answer = authentication.welcome(keys, hello.nonce, self._own().name)
        self._tell(listener, came.number, head(WELCOME, settled), answer, b"1" if shared else b"0")
        if hello.to == self._own().name:  # otherwise the caller notices from the answer
            self._meet(listener, came, hello)

    def refuse_version(self, listener: Listener, number: bytes) -> None:
        """Send the versions spoken here to a caller."""
        self._tell(listener, number, self.versions.packed)

    def _settled(self, version: int, packed: memoryview) -> tuple[Hello | None, int | None]:
        """A hello and the agreed version; None for each that is missing."""
        try:
            hello = Hello.read(packed)
        except MalformedError:
            if self.versions.speaks(version):
                raise
            return None, None  # a hello of another version may have another form
        return hello, self.versions.settled(Versions.said(version, hello.oldest))

    def _is_another(self, listener: Listener, came: IncomingMessage, hello: Hello) -> bool:
        """True for a caller that takes a name which it has not signed, a second name, or one name too
        many."""
        if came.signed and came.signed != authentication.signature_text(hello.nonce, hello.name):
            return True
        known, caller = self.of.get(hello.name), listener.callers.get(came.number)
        if caller is not None and caller.name != hello.name:
            return True
        pair = self._pairs.get(hello.name)
        if pair is not None and not hello.is_proved(pair):
            return True
        if self.admits_answers_only or hello.name in self.answering:
            return not hello.answers  # `_is_over` checks answers
        if hello.name not in self.kept:
            return known is None and (len(self.of) >= MOST_PEERS or not can_open(DESCRIPTORS))
        is_answer = known is not None and known.nonce == hello.answers
        # addresses are not secret: the same address may call at the same moment, but takes no occupied place
        may_be_it = known is not None and known.address.is_same(hello.address)
        return not is_answer and (not may_be_it or self._listeners.has_called(hello.name))

    def _is_over(self, hello: Hello) -> bool:
        """True if it answers a call of a conversation that is over."""
        known = self.of.get(hello.name)
        return bool(hello.answers) and (known is None or known.nonce != hello.answers)

    def _meet(self, listener: Listener, came: IncomingMessage, hello: Hello) -> None:
        """Accept a peer's call: its first, a call back, or a new one."""
        name, address = hello.name, hello.address
        known = self.of.get(name)
        if known is not None:
            if not (known.address.is_port_alone or known.address.is_same(address)):
                self.lose(name, "another process has its name now")
            elif self._listeners.has_called(name) and not hello.answers:
                self.lose(name, "it connected again")
            else:
                known.met(address)
        self._listeners.forget(name)
        listener.callers[came.number] = Caller(name, came.fingerprint, hello)
        if name not in self.of:
            try:
                self.call(name, address, hello.nonce)
            except ClusterError as error:
                self._common.events.append(Lost(name, str(error)))

    def _tell(self, listener: Listener, number: bytes, *frames: bytes) -> None:
        listener.tell(number, frames)
        self._common.readiness.doubt(listener.descriptor)
