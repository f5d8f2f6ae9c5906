"""Planted mistakes about copies of buckets, to check that the judges find them.

Knows: one possible mistake of each state machine of a server. Does not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.chaos.fault_injection import Fault, never

from cotswold.paramserver.core.sessions import SessionRecord, Sessions
from cotswold.replication.replica.bucket_replica import BucketReplica
from cotswold.replication.replica.bucket_state import BucketState, Delta
from cotswold.replication.replica.follower_progress import Followers
from cotswold.replication.replica.group_member import GroupMember
from cotswold.replication.replica.lease import Lease
from cotswold.replication.replica.server import ReplicaServer
from cotswold.wire import Fence, FenceReply, Group, LearnerCaughtUp, Prepare, Send

_Any = Any
"""Stands for number types: patched machines accept any."""


def _any_term(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def prepare(self: BucketReplica[_Any], sender: str, message: Prepare, now: float) -> list[Send]:
        self.fence = self.group.term
        return list(right(self, self.group.primary, replace(message, term=self.group.term), now))

    return prepare


def _at_once(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: BucketReplica[_Any], now: float) -> list[Send]:
        if self.is_acting(now):
            self.committed = self.state.index
        return list(right(self, now))

    return commit


def _without_sessions(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: BucketState[_Any], after: int) -> Delta:
        told: Delta = right(self, after)
        sessions = tuple(replace(each, last=0, applied=None, samples=()) for each in told.change.sessions)
        return replace(told, change=replace(told.change, sessions=sessions))

    return since


def _unfenced(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def fenced(self: BucketReplica[_Any], fence: Fence) -> FenceReply:
        return FenceReply(self.bucket, fence.term, self.server, self.group.term, self.index)

    return fenced


def _caught_early(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def prepared(self: BucketReplica[_Any], sender: str, message: _Any, now: float) -> list[Send]:
        sends: list[Send] = right(self, sender, message, now)
        if sender in self.group.learners and sender in self._followers:
            self._followers[sender].is_voter = False
            if not any(isinstance(each.message, LearnerCaughtUp) for each in sends):
                sends.append(
                    Send("controllers", LearnerCaughtUp(self.bucket, self.group.term, self.server, sender))
                )
        return sends

    return prepared


def _frozen_is_now(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: BucketState[_Any], after: int) -> Delta:
        self._froze_with_change = True
        found: Delta = right(self, after)
        return found

    return since


def _unheld(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def hold(self: BucketReplica[_Any], sends: list[Send], now: float) -> list[Send]:
        return [*sends, *right(self, [], now)]

    return hold


def _one_is_enough(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: BucketReplica[_Any], now: float) -> list[Send]:
        if self.is_acting(now) and self._followers:
            has = [each.match_index or 0 for each in self._followers.values()]
            self.committed = max(self.committed, min(max(has), self.state.index))
        return list(right(self, now))

    return commit


def _of_anybody(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, sender, bucket, now: self.copies.get(bucket)


def _what_waits_too(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, number: replace(right(self, number), last=self.last)


def _first_alone(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def least(self: Followers, index: int) -> int:
        """Commit as soon as the head of a chain has the change."""
        needed = [each for each in self.values() if each.is_voter][:1]
        return min([index, *(-1 if each.match_index is None else each.match_index for each in needed)])

    return least


def _however_few(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: BucketReplica[_Any], now: float) -> list[Send]:
        own = self.settings
        self.settings = replace(own, min_members=1)
        try:
            return list(right(self, now))
        finally:
            self.settings = own

    return commit


def _without_prepared(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def lead(self: BucketReplica[_Any], before: _Any, now: float) -> None:
        self._pending.clear()
        right(self, before, now)

    return lead


def _gaps(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def prepare(self: BucketReplica[_Any], sender: str, message: Prepare, now: float) -> list[Send]:
        return list(
            right(self, sender, replace(message, base_index=min(message.base_index, self._prepared)), now)
        )

    return prepare


def _with_removed(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def regroup(self: Followers, group: Group, now: float) -> None:
        before = dict(self)
        right(self, group, now)
        self.update({name: peer for name, peer in before.items() if name not in self})

    return regroup


def _old_groups(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def assign(self: BucketReplica[_Any], group: Group, now: float) -> list[Send]:
        if group.term < self.group.term:
            self.group, self.fence = replace(self.group, term=group.term - 1), group.term
        return list(right(self, group, now))

    return assign


def _weights_alone(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: BucketState[_Any], after: int) -> Delta:
        told: Delta = right(self, after)
        names = told.names
        some = [each for place, each in enumerate(told.buffers) if names[place % len(names)] == "weights"]
        return replace(told, names=("weights",) if "weights" in names else (), buffers=tuple(some))

    return since


def _without_orders(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: BucketState[_Any], after: int) -> Delta:
        told: Delta = right(self, after)
        return replace(told, change=replace(told.change, coordinator_state=None))

    return since


def _without_frozen(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: BucketState[_Any], after: int) -> Delta:
        own, self._frozen = self._frozen, -2
        try:
            told: Delta = right(self, after)
        finally:
            self._frozen = own
        return told

    return since


def _says_all(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: BucketReplica[_Any], now: float) -> list[Send]:
        """Send held replies without a lease."""
        own, self._lease = self._lease, Lease(float("inf"))
        try:
            return list(right(self, now))
        finally:
            self._lease = own

    return commit


def _nothing(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda *_: None


def _nobody_owes(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, checkpoint: ()


COPY_FAULTS: Mapping[str, Fault] = {
    "any-term": Fault(  # harmless alone: the old primary has no copy in the next term
        "a secondary prepares whatever comes, of any term and of anybody",
        *(BucketReplica, "prepare", _any_term),
        also=Fault("a server hears who has no copy", ReplicaServer, "_copy_with", _of_anybody),
    ),
    "at-once": Fault("a primary says what nobody else has prepared", BucketReplica, "_commit", _at_once),
    "one-is-enough": Fault("a primary waits for one member alone", BucketReplica, "_commit", _one_is_enough),
    "chain-head": Fault("a chain is waited for at its head alone", Followers, "min_match", _first_alone),
    "however-few": Fault(
        "a primary commits with fewer members than there must be",
        *(BucketReplica, "_commit", _however_few),
    ),
    "unheld": Fault("a primary answers before it replicates", BucketReplica, "_hold_replies", _unheld),
    "gaps": Fault("a secondary prepares what it lacks the beginning of", BucketReplica, "prepare", _gaps),
    "without-prepared": Fault(
        "the elected forgets what it prepared", GroupMember, "_lead", _without_prepared
    ),
    "counts-removed": Fault(
        "a primary waits for whoever was left out", Followers, "set_group", _with_removed
    ),
    "old-groups": Fault("a copy acts by a group that is over", BucketReplica, "assign", _old_groups),
    "no-numbers": Fault(
        "senders' numbers are not replicated", BucketState, "changes_since", _without_sessions
    ),
    "waiting-numbers": Fault(
        "the number of an update that waits counts", SessionRecord, "state", _what_waits_too
    ),
    "weights-alone": Fault("what rules keep is not replicated", BucketState, "changes_since", _weights_alone),
    "no-orders": Fault("orders are not replicated", BucketState, "changes_since", _without_orders),
    "no-frozen": Fault("what was frozen is not replicated", BucketState, "changes_since", _without_frozen),
    "frozen-is-now": Fault(
        "what is now is taken for what was frozen", BucketState, "changes_since", _frozen_is_now
    ),
    "torn": Fault("shards freeze before all markers are in", Sessions, "without_marker", _nobody_owes),
    "unpromoted": Fault("the elected changes numbers of messages", BucketState, "make_writable", _nothing),
    "unstamped": Fault("the elected knows not what is different", BucketState, "_stamp_all", _nothing),
    "says-all": Fault("what was held is said after the lease", BucketReplica, "_commit", _says_all),
    "unfenced": Fault("who was fenced goes on", GroupMember, "fenced", _unfenced),
    "keeps-all": Fault("a copy keeps what may be of another history", GroupMember, "_is_unrelated", never),
    "caught-early": Fault(
        "a learner is a member before it is waited for", BucketReplica, "prepared", _caught_early
    ),
}
"""Faults by name."""
