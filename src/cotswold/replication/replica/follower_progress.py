"""The peers of a primary: what each has and was sent, and so what it is sent next.

Knows: the group, the way by which things are sent, when who was heard. Does not know: what is in the bucket
(`Offer.since`), clients, leases, disks.

    a peer                                             what it is sent
    has not said in this term what it has              a beat, which it answers
    was sent less than there is                        what is different since, by the way
    was sent all, and nothing for a beat               a beat
    has all, and knows that all have it                a beat, with which its server hears of some bucket at
                                                       least; of each by and by
    lacks what came before something                   all that it lacks, by the primary
    has not answered for its patience                  the same; and no chain brings it anything for a while

    the way        who sends to whom
    star           the primary to each peer
    chain          the primary to the first of the secondaries that were sent as much as it, each of these to
                   the next; the primary to all others, to learners, and beats

Who answers late has more patience: what it answers may be on its way behind much else. A server is not silent
to a bucket while it speaks of others, but for long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cotswold.replication.replica.bucket_state import Difference
from cotswold.replication.replica.settings import Copying
from cotswold.wire import Group, Prepare, Prepared, Send

NOTHING = -1
"""The index of whoever has nothing that counts."""
_INDEXES = 1 << 62
DEAF = 8
"""So many times as long as a silent one may a server say nothing of a bucket, while it speaks of others."""
_SELDOM = 5.0
"""So many beats apart are those to a peer that has all, while its server hears of other buckets."""
_PATIENCE, _FORGETS, _MOST = 2.0, 0.9, 16.0
"""How much longer than an answer took the next is waited for; how that falls with each answer; and how many
times the usual it is at most."""


def is_index(number: int) -> bool:
    """Whether an index can be so great, or -1 for nothing: what is counted on from it must travel as well."""
    return NOTHING <= number < _INDEXES


@dataclass
class Neighbours:
    """The other servers, as this one has seen them, whatever the bucket."""

    spoke: dict[str, float] = field(default_factory=dict)
    """When each said anything last."""
    told: dict[str, float] = field(default_factory=dict)
    """When each was sent anything last."""

    def forget(self, before: float) -> None:
        """Nothing follows any more from what was said or sent before this moment."""
        self.spoke = {name: at for name, at in self.spoke.items() if at >= before}
        self.told = {name: at for name, at in self.told.items() if at >= before}


@dataclass
class Peer:
    """Somebody who has, or is to have, what the primary has."""

    heard: float
    patience: float
    """For so long an answer is waited for."""
    has: int | None = None
    """To which index; None until it says so in this term."""
    sent: int = NOTHING
    """To which index it was sent everything."""
    spoken: float = float("-inf")
    """When it was sent anything last."""
    knows: int = NOTHING
    """Which index it was told is committed."""
    asked: float = float("-inf")
    """When it was sent something that it has not answered."""
    is_needed: bool = True
    """Whether nothing is committed that it has not prepared."""
    saved: int = NOTHING
    """To which index it is on its disk."""
    direct_until: float = float("-inf")
    """Until when no chain brings it anything."""


@dataclass(frozen=True)
class Offer:
    """What a primary has to tell."""

    bucket: str
    term: int
    index: int
    committed: int
    since: Callable[[int], Difference]
    """What is different since an index."""


class Peers(dict[str, Peer]):
    """By name, in the order of the group."""

    def __init__(self, copying: Copying, neighbours: Neighbours) -> None:
        super().__init__()
        self._copying, self._neighbours = copying, neighbours
        self._secondaries: tuple[str, ...] = ()

    def regroup(self, group: Group, now: float) -> None:
        """A term begins, in which these are the others; whoever was among them before has what it had."""
        before = dict(self)
        self.clear()
        self._secondaries = group.secondaries
        for name in group.everybody[1:]:
            self[name] = peer = before.get(name) or Peer(now, self._copying.retry_seconds)
            peer.is_needed, peer.saved = name in group.secondaries, NOTHING
            # it may not have heard what is of this term
            peer.sent = NOTHING if peer.has is None else peer.has

    def least(self, index: int) -> int:
        """To which index all have everything that are waited for; ``index`` where nobody is."""
        for peer in self.values():
            if peer.is_needed and (peer.has is None or peer.has < index):
                index = NOTHING if peer.has is None else peer.has
        return index

    # --- what they are sent ---

    def tell(self, offer: Offer, now: float) -> list[Send]:
        """Everybody is sent what is different since it was sent something last."""
        told: dict[int, Difference] = {}
        chain = self._chain(now) if self._copying.way == "chain" else ()
        sends = self._send(chain, offer, now, told) if chain else []
        for name in self:
            if name not in chain:
                sends += self._send((name,), offer, now, told)
        return sends

    def tell_one(self, name: str, offer: Offer, now: float) -> list[Send]:
        """The same of one, by the primary itself."""
        return self._send((name,), offer, now, {})

    def _chain(self, now: float) -> tuple[str, ...]:
        """Secondaries that were all sent the same, one of which hands it on to the next."""
        able = [
            name
            for name in self._secondaries
            if self[name].has is not None and self[name].direct_until <= now
        ]
        return tuple(name for name in able if self[name].sent == self[able[0]].sent)

    def _send(
        self, way: tuple[str, ...], offer: Offer, now: float, told: dict[int, Difference]
    ) -> list[Send]:
        """To the first of these, which hands it on to the others. ``told``: what is different since some
        indexes, which most have in common."""
        first, index = self[way[0]], offer.index
        first.spoken = self._neighbours.told[way[0]] = now
        for name in way:
            self[name].knows = offer.committed
        after = index if first.has is None else first.sent  # first it says what it has
        if after >= index:
            return [self._beat(way[0], offer)]
        for name in way:
            peer = self[name]
            if peer.has is not None and peer.sent <= peer.has:
                peer.asked = now
            peer.sent = index
        found = told.get(after)
        if found is None:
            found = told[after] = offer.since(after)
        words = (offer.bucket, offer.term, after, index, offer.committed)
        return [Send(way[0], Prepare(*words, found.change, found.names, found.buffers, way[1:]))]

    def _beat(self, name: str, offer: Offer) -> Send:
        """Nothing is different; of what a chain is bringing it it does not hear before."""
        has, index = self[name].has, offer.index
        if self._copying.way == "chain" and has is not None:
            index = min(has, index)
        return Send(name, Prepare(offer.bucket, offer.term, index, index, offer.committed, None))

    # --- what they say ---

    def heard(self, sender: str, prepared: Prepared, offer: Offer, now: float) -> list[Send]:
        """One of them says what it has."""
        peer = self[sender]
        peer.heard, peer.saved = now, prepared.saved
        if peer.has is None or prepared.is_lacking:
            # what it has above is of whoever led before, and it is told all that differs from what all have
            peer.has = peer.sent = prepared.index
            return self.tell_one(sender, offer, now) if peer.sent < offer.index else []
        if prepared.index > peer.has:
            self._wait(peer, max(_PATIENCE * (now - peer.asked), _FORGETS * peer.patience))
            peer.has, peer.asked = prepared.index, now
        return []

    def _wait(self, peer: Peer, seconds: float) -> None:
        """For so long its next answer is waited for, within bounds."""
        usual = self._copying.retry_seconds
        peer.patience = min(max(usual, seconds), _MOST * usual)

    def watch(self, offer: Offer, now: float) -> list[Send]:
        """Time has passed: who is late is sent again what it has not answered, and a beat who was sent
        nothing."""
        sends: list[Send] = []
        for name, peer in self.items():
            is_late = peer.has is not None and peer.sent > peer.has and now - peer.asked > peer.patience
            if is_late:
                self._wait(peer, _PATIENCE * peer.patience)
                peer.sent, peer.asked = peer.has or 0, now
                peer.direct_until = now + self._copying.direct_seconds
            if is_late or self._is_due(name, peer, offer, now):
                sends += self.tell_one(name, offer, now)
        return sends

    def _is_due(self, name: str, peer: Peer, offer: Offer, now: float) -> bool:
        """Whether a beat is."""
        quiet, beat = now - peer.spoken, self._copying.beat_seconds
        if quiet < beat:
            return False
        knows_all = peer.has == offer.index and peer.knows >= offer.committed
        hears = now - self._neighbours.told.get(name, float("-inf")) < beat
        return quiet >= _SELDOM * beat or not (knows_all and hears)

    def silent(self, now: float) -> list[str]:
        """Those of whom nothing is heard."""
        return [
            name
            for name, peer in self.items()
            if is_silent(name, peer.heard, self._neighbours, now, self._copying)
        ]


def is_silent(name: str, heard: float, neighbours: Neighbours, now: float, copying: Copying) -> bool:
    """Whether a server that said something of a bucket last at ``heard`` is to be told as silent."""
    quiet = now - heard
    return quiet > copying.silent_seconds and (
        now - neighbours.spoke.get(name, heard) > copying.silent_seconds
        or quiet > DEAF * copying.silent_seconds
    )
