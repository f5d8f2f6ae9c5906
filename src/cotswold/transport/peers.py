"""Who is connected: how two endpoints meet, settle on a version, and lose each other.

Knows: hellos and what is answered, connections in both directions, which tokens they were made with. Does not
know: messages, who waits for what.

A *conversation* is a call and one back; each bears a text by chance, and whoever calls back says which call
that answers.

    a caller who knows a token says hello               what happens
    no version is spoken by both                        `REFUSAL`
    it answers a call of a conversation that is over    `GONE`
    nobody has its name                                 `WELCOME`; it is called back
    it was called, and has not called here              `WELCOME`: the conversation is whole
    it has called here before, and answers nothing      the conversation is over, another begins
    another endpoint has its name                       that one is lost, a conversation begins
    its name is kept for whom this process calls        `GONE`; so where there are too many, or no open files
                                                          are left, and for a second name on one connection
    somebody vouches for its name, and it proves not    `GONE`
      that the name is its own
    only answers are admitted, and it answers nothing   `GONE`

Both ends of a conversation hear that it is over: what is sent comes to whom it was sent, or `Lost` is heard.
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
from cotswold.transport.authentication import Ring
from cotswold.transport.frames import (
    GONE,
    REFUSAL,
    WELCOME,
    End,
    Lost,
    MalformedError,
    Message,
    Ready,
    head,
    parted,
)
from cotswold.transport.handshake import Hello
from cotswold.transport.listener import Caller, Came, Listener
from cotswold.transport.listeners import Doors
from cotswold.transport.outgoing import DESCRIPTORS, Connection
from cotswold.transport.peer import Own, Peer
from cotswold.transport.poller import Readiness
from cotswold.transport.shared_buffers import Probe
from cotswold.transport.versions import Versions

Event = Message | Lost | Ready
_VOUCHED = 1 << 12
"""Names that an endpoint has keys of, at most; it forgets the one given longest ago."""
MOST_PEERS = 2500
"""Of an endpoint; ZeroMQ has some sockets for each."""
OLD_TOKEN = "its connection was made with a token that is not in use any more"


@dataclass(frozen=True)
class Common:
    """What the parts of an endpoint have in common."""

    context: zmq.Context[zmq.Socket[bytes]]
    readiness: Readiness = field(default_factory=Readiness)
    events: deque[Event] = field(default_factory=deque)
    refused: Counter[str] = field(default_factory=Counter)
    read: deque[tuple[str, int]] = field(default_factory=deque)
    """Blocks of peers' shared memory that nothing here refers to any more."""


class Peers:
    """Those of an endpoint; ``own`` is what it says of itself now, ``take_in`` reads what has come."""

    def __init__(
        self, common: Common, doors: Doors, ring: Ring, own: Callable[[], Own], take_in: Callable[[], None]
    ) -> None:
        self.of: dict[str, Peer] = {}
        """By name, those that are connected or being connected."""
        self.ring = ring
        """With whose keys they are called, and answered."""
        self.versions = Versions.ours()
        self.kept: set[str] = set()
        """Names of which only those come in whom this process has called."""
        self.answering: set[str] = set()
        """Names that come in only with the answer to a call."""
        self.admits_answers_only = False
        """Whether that holds for every name."""
        self._pairs: dict[str, str] = {}
        """Keys by which callers prove their names, by name."""
        self._common, self._doors, self._own, self._take_in = common, doors, own, take_in

    def call(self, name: str, address: Address, answers: str = "") -> None:
        """Call somebody; raises ClusterError for an endpoint of another host that has no port."""
        tokens = self.ring.towards(address.fingerprint)
        peer = Peer(self._common.context, self._own(), name, address, tokens, self._common.read, answers)
        self.of[name] = peer
        self._look_at(peer)

    def lose(self, name: str, why: str, *, tell: bool = True, end: End = End.OTHERWISE) -> None:
        """A peer is no more; if it lives after all, it is told."""
        peer = self.of.pop(name)
        self._look_away(peer.connection)
        peer.close()
        for listener, number in self._doors.forget(name):
            if tell:
                self._tell(listener, number, head(GONE, peer.version or self.versions.newest))
        self._common.events.append(Lost(name, why, end))

    def vouch(self, name: str, pair: str) -> None:
        """A caller with this name must know the key of the pair; one that is there and does not, is lost."""
        self._pairs.pop(name, None)
        if not pair:
            return
        self._pairs[name] = pair
        if len(self._pairs) > _VOUCHED:
            del self._pairs[next(iter(self._pairs))]
        if name in self.of and self._doors.has_called(name) and not self.has_proved(name, pair):
            self._common.refused["strangers"] += 1
            self.lose(name, "it has not proved its name")

    def has_proved(self, name: str, pair: str) -> bool:
        """Whether somebody has called under this name, and proved it by the key of the pair."""
        callers = [each for each in self._doors.callers if each.name == name]
        return bool(callers) and all(each.hello.is_proved(pair) for each in callers)

    def lose_by_version(self, peer: Peer, theirs: Versions) -> None:
        """It speaks none that is spoken here, or says so."""
        self._common.refused["version"] += 1
        self.lose(peer.name, self.versions.refusal(theirs), tell=False)

    def rotate(self, ring: Ring) -> None:
        """Other tokens are in use: whatever was connected with one that is not, either way, is lost."""
        self.ring = ring
        self._take_in()
        old = {name for name, peer in self.of.items() if ring.named(peer.keys.fingerprint) is None}
        old |= {each.name for each in self._doors.callers if ring.named(each.fingerprint) is None}
        for name in old & self.of.keys():
            self.lose(name, OLD_TOKEN)

    # --- who is called ---

    def _look_at(self, peer: Peer) -> None:
        """From now on, at the connection that it has now."""
        readiness, connection = self._common.readiness, peer.connection
        readiness.add_socket(connection.descriptor, partial(self._hear, peer))
        readiness.add_socket(connection.monitor_descriptor, partial(self._look_after, peer))

    def _look_away(self, connection: Connection) -> None:
        self._common.readiness.remove(connection.descriptor)
        self._common.readiness.remove(connection.monitor_descriptor)

    def _hear(self, peer: Peer) -> None:
        """What the process that was called answers; that it takes more."""
        while self.of.get(peer.name) is peer and (said := peer.heard()) is not None:
            try:
                self._answered(peer, said)
            except MalformedError:
                self._common.refused["malformed"] += 1

    def _answered(self, peer: Peer, said: Sequence[bytes]) -> None:
        """One answer; raises MalformedError."""
        kind, version, rest = parted(said[0])
        if kind == GONE:
            self.lose(peer.name, "it dropped this process", tell=False)
        elif kind == REFUSAL:
            self.lose_by_version(peer, Versions.read(version, rest))
        elif kind != WELCOME or len(said) != 3:
            raise MalformedError("no answer")
        elif not authentication.is_welcome(peer.keys, said[1], peer.nonce, peer.name):
            self._common.refused["strangers"] += 1
            self.lose(peer.name, "another process answers at its address", tell=False, end=End.STRANGER)
        elif not self.versions.speaks(version):
            self.lose_by_version(peer, Versions(version, version))
        else:
            peer.welcomed(version, shared=said[2] == b"1" and peer.address.is_here)

    def _look_after(self, peer: Peer) -> None:
        """Whether a peer's connection ended."""
        if self.of.get(peer.name) is not peer or (end := peer.connection.ended()) is None:
            return
        self._take_in()  # what it sent before
        if self.of.get(peer.name) is not peer:
            return
        before = peer.connection
        if end is End.REFUSED and peer.called_again():
            self._look_away(before)
            self._look_at(peer)
            return
        self.lose(peer.name, peer.why_ended(end), end=peer.how_ended(end))

    # --- who calls ---

    def greet(self, listener: Listener, came: Came, version: int, packed: memoryview) -> None:
        """Somebody who knows a token says who it is; raises MalformedError."""
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
        if hello.to == self._own().name:  # else it finds out from the answer
            self._meet(listener, came, hello)

    def refuse_version(self, listener: Listener, number: bytes) -> None:
        """Say to whoever calls by this connection what is spoken here."""
        self._tell(listener, number, self.versions.packed)

    def _settled(self, version: int, packed: memoryview) -> tuple[Hello | None, int | None]:
        """A hello, and the version to which both settle; None where these are other ones."""
        try:
            hello = Hello.read(packed)
        except MalformedError:
            if self.versions.speaks(version):
                raise
            return None, None  # in another version it may have another form
        return hello, self.versions.settled(Versions.said(version, hello.oldest))

    def _is_another(self, listener: Listener, came: Came, hello: Hello) -> bool:
        """Whether a caller takes a name that is not the one it signed, or one more than it has, or is one too
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
            return not hello.answers  # of answers `_is_over` decides
        if hello.name not in self.kept:
            return known is None and (len(self.of) >= MOST_PEERS or not can_open(DESCRIPTORS))
        is_answer = known is not None and known.nonce == hello.answers
        # an address is no secret: it lets a peer call at the same moment, and take no place that is taken
        may_be_it = known is not None and known.address.is_same(hello.address)
        return not is_answer and (not may_be_it or self._doors.has_called(hello.name))

    def _is_over(self, hello: Hello) -> bool:
        """Whether it answers a call of a conversation that is over."""
        known = self.of.get(hello.name)
        return bool(hello.answers) and (known is None or known.nonce != hello.answers)

    def _meet(self, listener: Listener, came: Came, hello: Hello) -> None:
        """A peer calls: for the first time, or back, or anew."""
        name, address = hello.name, hello.address
        known = self.of.get(name)
        if known is not None:
            if not (known.address.is_port_alone or known.address.is_same(address)):
                self.lose(name, "another process has its name now")
            elif self._doors.has_called(name) and not hello.answers:
                self.lose(name, "it connects anew")
            else:
                known.met(address)
        self._doors.forget(name)
        listener.callers[came.number] = Caller(name, came.fingerprint, hello)
        if name not in self.of:
            try:
                self.call(name, address, hello.nonce)
            except ClusterError as error:
                self._common.events.append(Lost(name, str(error)))

    def _tell(self, listener: Listener, number: bytes, *frames: bytes) -> None:
        listener.tell(number, frames)
        self._common.readiness.doubt(listener.descriptor)
