"""Progress of the followers, as tracked by the primary: what each has, and what to send next.

Knows: the group, the topology, when each follower replied. Does not know: the contents of the bucket
(`PrimaryState.changes_since`), clients, leases, disks.

    follower                                           message
    has not reported its index in this term            a heartbeat, which it answers
    was sent less than the primary has                 the changes since, along the topology
    was sent everything, and nothing for an interval   a heartbeat
    has everything and knows that it is committed      a heartbeat of at least one bucket of its server;
                                                       of each bucket at longer intervals
    lacks the changes before a message                 everything that it lacks, from the primary
    has not replied within its timeout                 the same; and no chain includes it for a while

    topology       sender and receiver
    star           the primary to each follower
    chain          the primary to the first of the secondaries that were sent equally much, each of these to
                   the next; the primary to all others, to learners, and all heartbeats

A slow follower gets a longer timeout: its reply may queue behind other messages. A server that sends messages
of other buckets counts as silent only after a long time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cotswold.replication.replica.bucket_state import Delta
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.wire import Group, Prepare, Prepared, Send

NO_INDEX = -1
"""Index of a follower without valid data."""
_INDEXES = 1 << 62
BUCKET_SILENCE_FACTOR = 8
"""Factor on the silence limit of a bucket while its server sends messages of other buckets."""
_IDLE_HEARTBEAT_FACTOR = 5.0
"""Factor on the heartbeat interval of an up-to-date follower whose server receives messages of other
buckets."""
_TIMEOUT_FACTOR, _DECAY, _MAX_FACTOR = 2.0, 0.9, 16.0
"""Timeout relative to the time that the last reply took; factor by which it shrinks with each reply;
maximum relative to the initial timeout."""


def is_index(number: int) -> bool:
    """True if an index is in range, or -1; the limit leaves room to count on."""
    return NO_INDEX <= number < _INDEXES


@dataclass
class PeerActivity:
    """Activity of the other servers, over all buckets."""

    last_received: dict[str, float] = field(default_factory=dict)
    """Time of the last message from each server."""
    last_sent: dict[str, float] = field(default_factory=dict)
    """Time of the last message to each server."""

    def forget(self, before: float) -> None:
        """Forget activity before this time: nothing depends on it any more."""
        self.last_received = {name: at for name, at in self.last_received.items() if at >= before}
        self.last_sent = {name: at for name, at in self.last_sent.items() if at >= before}


@dataclass
class FollowerProgress:
    """Progress of one follower. `match_index` is the index up to which its state is known to match the
    primary's."""

    last_reply: float
    timeout: float
    """Timeout of a reply, in seconds."""
    match_index: int | None = None
    """Index up to which the follower has everything; None until it reports in this term."""
    next_index: int = NO_INDEX
    """Index up to which everything was sent."""
    last_sent: float = float("-inf")
    """Time of the last message to it."""
    known_commit: int = NO_INDEX
    """Committed index that it was last sent."""
    last_request: float = float("-inf")
    """Time of the oldest message without a reply."""
    is_voter: bool = True
    """True if a commit requires its acknowledgement."""
    durable_index: int = NO_INDEX
    """Index up to which its disk has everything."""
    direct_until: float = float("-inf")
    """Time until which no chain includes it."""


@dataclass(frozen=True)
class PrimaryState:
    """State of the primary that followers are sent."""

    bucket: str
    term: int
    index: int
    committed: int
    changes_since: Callable[[int], Delta]
    """Return the changes since an index."""


class Followers(dict[str, FollowerProgress]):
    """Followers by name, in the order of the group."""

    def __init__(self, copying: ReplicationSettings, activity: PeerActivity) -> None:
        super().__init__()
        self._copying, self._activity = copying, activity
        self._secondaries: tuple[str, ...] = ()

    def set_group(self, group: Group, now: float) -> None:
        """Begin a term with these followers; those of the previous term keep their index."""
        before = dict(self)
        self.clear()
        self._secondaries = group.secondaries
        for name in group.all_servers[1:]:
            self[name] = peer = before.get(name) or FollowerProgress(now, self._copying.retry_seconds)
            peer.is_voter, peer.durable_index = name in group.secondaries, NO_INDEX
            # it may have missed messages of this term
            peer.next_index = NO_INDEX if peer.match_index is None else peer.match_index

    def min_match(self, index: int) -> int:
        """Return the index that all required followers have; ``index`` if none is required."""
        for peer in self.values():
            if peer.is_voter and (peer.match_index is None or peer.match_index < index):
                index = NO_INDEX if peer.match_index is None else peer.match_index
        return index

    # --- messages to followers ---

    def send_changes(self, offer: PrimaryState, now: float) -> list[Send]:
        """Send every follower the changes since it was last sent something."""
        told: dict[int, Delta] = {}
        chain = self._chain(now) if self._copying.topology == "chain" else ()
        sends = self._send(chain, offer, now, told) if chain else []
        for name in self:
            if name not in chain:
                sends += self._send((name,), offer, now, told)
        return sends

    def send_to(self, name: str, offer: PrimaryState, now: float) -> list[Send]:
        """Send one follower the changes, from the primary itself."""
        return self._send((name,), offer, now, {})

    def _chain(self, now: float) -> tuple[str, ...]:
        """Return secondaries that were all sent the same index, in the order of the chain."""
        able = [
            name
            for name in self._secondaries
            if self[name].match_index is not None and self[name].direct_until <= now
        ]
        return tuple(name for name in able if self[name].next_index == self[able[0]].next_index)

    def _send(
        self, route: tuple[str, ...], offer: PrimaryState, now: float, told: dict[int, Delta]
    ) -> list[Send]:
        """Send to the first of these, which forwards it to the others. ``told`` caches changes since an
        index, which most followers share."""
        first, index = self[route[0]], offer.index
        first.last_sent = self._activity.last_sent[route[0]] = now
        for name in route:
            self[name].known_commit = offer.committed
        after = index if first.match_index is None else first.next_index  # it reports its index first
        if after >= index:
            return [self._beat(route[0], offer)]
        for name in route:
            peer = self[name]
            if peer.match_index is not None and peer.next_index <= peer.match_index:
                peer.last_request = now
            peer.next_index = index
        found = told.get(after)
        if found is None:
            found = told[after] = offer.changes_since(after)
        words = (offer.bucket, offer.term, after, index, offer.committed)
        return [Send(route[0], Prepare(*words, found.change, found.names, found.buffers, route[1:]))]

    def _beat(self, name: str, offer: PrimaryState) -> Send:
        """Return a heartbeat. It names no index that is still on its way along a chain."""
        has, index = self[name].match_index, offer.index
        if self._copying.topology == "chain" and has is not None:
            index = min(has, index)
        return Send(name, Prepare(offer.bucket, offer.term, index, index, offer.committed, None))

    # --- messages from followers ---

    def on_prepared(self, sender: str, prepared: Prepared, offer: PrimaryState, now: float) -> list[Send]:
        """Process a follower's report of its index."""
        peer = self[sender]
        peer.last_reply, peer.durable_index = now, prepared.durable_index
        if peer.match_index is None or prepared.is_behind:
            # its higher indexes are of an earlier primary; it is sent all changes since the index that all
            # have
            peer.match_index = peer.next_index = prepared.index
            return self.send_to(sender, offer, now) if peer.next_index < offer.index else []
        if prepared.index > peer.match_index:
            self._wait(peer, max(_TIMEOUT_FACTOR * (now - peer.last_request), _DECAY * peer.timeout))
            peer.match_index, peer.last_request = prepared.index, now
        return []

    def _wait(self, peer: FollowerProgress, seconds: float) -> None:
        """Set the timeout of the next reply, within bounds."""
        usual = self._copying.retry_seconds
        peer.timeout = min(max(usual, seconds), _MAX_FACTOR * usual)

    def watch(self, offer: PrimaryState, now: float) -> list[Send]:
        """Process the passing of time: resend to late followers, and send heartbeats."""
        sends: list[Send] = []
        for name, peer in self.items():
            is_late = (
                peer.match_index is not None
                and peer.next_index > peer.match_index
                and now - peer.last_request > peer.timeout
            )
            if is_late:
                self._wait(peer, _TIMEOUT_FACTOR * peer.timeout)
                peer.next_index, peer.last_request = peer.match_index or 0, now
                peer.direct_until = now + self._copying.chain_bypass_seconds
            if is_late or self._is_due(name, peer, offer, now):
                sends += self.send_to(name, offer, now)
        return sends

    def _is_due(self, name: str, peer: FollowerProgress, offer: PrimaryState, now: float) -> bool:
        """True if a heartbeat is due."""
        quiet, beat = now - peer.last_sent, self._copying.beat_seconds
        if quiet < beat:
            return False
        knows_all = peer.match_index == offer.index and peer.known_commit >= offer.committed
        hears = now - self._activity.last_sent.get(name, float("-inf")) < beat
        return quiet >= _IDLE_HEARTBEAT_FACTOR * beat or not (knows_all and hears)

    def silent_members(self, now: float) -> list[str]:
        """Return the silent followers."""
        return [
            name
            for name, peer in self.items()
            if is_silent(name, peer.last_reply, self._activity, now, self._copying)
        ]


def is_silent(
    name: str, last_received: float, activity: PeerActivity, now: float, copying: ReplicationSettings
) -> bool:
    """True if a server is silent whose last message about a bucket came at ``last_received``."""
    quiet = now - last_received
    return quiet > copying.silent_seconds and (
        now - activity.last_received.get(name, last_received) > copying.silent_seconds
        or quiet > BUCKET_SILENCE_FACTOR * copying.silent_seconds
    )
