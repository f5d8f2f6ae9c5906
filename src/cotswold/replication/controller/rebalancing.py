"""Rebalancing: spread replicas and primaries evenly over servers.

Knows: the load of each server, when the last change happened. Does not know: the next step for a bucket
(`placement`), how a primary is elected.

    condition                                                   action
    the cluster has just changed, or a bucket is moving         none
    a server has two replicas more than another                 the other learns one; then drop a member, if
                                                                all are healthy (`placement`)
    a host has two replicas of a bucket, another has none       the same
    replicas are balanced, nothing changed for long, a server   one of its secondaries takes over that bucket
      leads two buckets more than one of its secondaries          (`election`)
    the same along a path of several servers                    the last step of the path first

A few replicas move at once, and at most two primaries a second, so training is not disturbed. Nothing is
stored: the next leader sees the same imbalance.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

from cotswold.phrases import counted
from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.election import ElectionManager, ElectionReason
from cotswold.replication.controller.placement import surplus_member
from cotswold.replication.controller.replication_repair import ReplicationRepair
from cotswold.wire import Group

_PAUSE_SECONDS = 0.25
_MAX_TRIED = 8
"""Number of the most and of the least loaded servers to try."""
_MAX_VISITED = 64
"""Maximum number of servers visited in search of a path that balances primaries."""
_SWEEP_BUCKETS = 200
"""Buckets checked for shared hosts per step."""


class Rebalancer:
    """Rebalancing by a leader."""

    def __init__(
        self, view: ClusterView, elections: ElectionManager, repair: ReplicationRepair, now: float
    ) -> None:
        self._view, self._elections, self._repair = view, elections, repair
        self._disturbed_at = self._moved_at = self._checked_at = self._handed_over_at = now
        """Times of the last cluster change, move of a replica, tick, and handover of a primary."""
        self._is_balanced = self._is_leadership_balanced = False
        """True if nothing was found to do and nothing has changed since."""
        self._to_visit: list[str] = []

    def postpone(self, now: float) -> None:
        """Record that a server joined or left, or that a bucket lost a replica."""
        self._disturbed_at = now
        self.changed()

    def changed(self) -> None:
        """Record that a bucket has a new group."""
        self._is_balanced = self._is_leadership_balanced = False

    def tick(self, now: float) -> None:
        """Process the passing of time."""
        if now - self._checked_at < _PAUSE_SECONDS:
            return
        self._checked_at, control = now, self._view.control
        if now - self._disturbed_at < control.settle_seconds or not self._view.map.is_settled:
            return
        while len(self._view.learning) < control.max_concurrent_moves and (
            self._spread_over_hosts() or self._move()
        ):
            self._moved_at = now
        is_calm = now - max(self._disturbed_at, self._moved_at) >= control.rebalance_quiet_seconds
        if is_calm and self._is_balanced and now - self._handed_over_at >= control.handover_seconds:
            self._balance_leadership(now)

    # --- replicas ---

    def _move(self) -> bool:
        """Begin to move a replica to a less loaded server; False if no move helps."""
        if self._is_balanced:
            return False
        loads = {name: load for load, name in self._view.servers.loads.ascending}
        for name, left in self._outgoing().items():
            if name in loads:
                loads[name] -= left
        ascending = sorted(loads, key=lambda name: (loads[name], name))
        for most in islice(reversed(ascending), _MAX_TRIED):
            for least in islice(ascending, _MAX_TRIED):
                if loads[most] - loads[least] < 2:
                    break
                if self._move_between(most, least, loads):
                    return True
        self._is_balanced = True
        return False

    def _outgoing(self) -> Counter[str]:
        """Return the number of replicas that each server is about to lose."""
        groups = map(self._view.map.intended, self._view.learning)
        return Counter(
            surplus_member(_with(group), self._view.servers)
            for group in groups
            if group is not None and len(group.members) >= self._view.control.replication_factor
        )

    def _move_between(self, most: str, least: str, loads: dict[str, int]) -> bool:
        known = self._view.servers.of[most]
        for bucket in sorted(known.copies, key=lambda name: name in known.leads):  # primaries last
            group = self._movable(bucket)
            if group is None or least in group.all_servers or self._repair.is_avoided(bucket, least):
                continue
            grown = replace(group, secondaries=(*group.secondaries, least))
            dropped = surplus_member(grown, self._view.servers)
            is_better = dropped in loads and loads[dropped] - loads[least] >= 2
            if is_better and self._hosts(grown, dropped) >= self._hosts(group):
                self._add_learner(group, least, f"{dropped} has more copies")
                return True
        return False

    def _spread_over_hosts(self) -> bool:
        """Begin to move a replica to a host without one of its bucket; False if no move helps."""
        self._to_visit = self._to_visit or list(self._view.groups)
        for _ in range(min(_SWEEP_BUCKETS, len(self._to_visit))):
            bucket = self._to_visit.pop()
            group = self._movable(bucket)
            if group is None or self._hosts(group) == len(group.members):
                continue
            place = self._view.servers.choose_host(group.members, self._repair.avoided(bucket))
            grown = group if place is None else replace(group, secondaries=(*group.secondaries, place))
            if place is not None and self._hosts(grown) > self._hosts(group):
                self._add_learner(group, place, "two copies are on one host")
                return True
        return False

    def _add_learner(self, group: Group, server: str, why: str) -> None:
        self._view.propose(replace(group, term=group.term + 1, learners=(server,)), why)

    def _movable(self, bucket: str) -> Group | None:
        """Return the group if all members are present and alive and no change is in progress."""
        group, of = self._view.groups.get(bucket), self._view.servers.of
        if group is None or group.learners or len(group.members) != self._view.control.replication_factor:
            return None
        if not self._elections.is_settled(bucket):
            return None
        return group if all(of[each].can_receive for each in group.members) else None

    def _hosts(self, group: Group, without: str = "") -> int:
        return len({self._view.servers.of[each].host for each in group.members if each != without})

    # --- primaries ---

    def _balance_leadership(self, now: float) -> None:
        if self._is_leadership_balanced or self._elections.of or self._view.learning:
            return
        leads = {
            name: len(self._view.servers.of[name].leads) for _, name in self._view.servers.loads.ascending
        }
        for most in sorted(leads, key=lambda name: (-leads[name], name))[:_MAX_TRIED]:
            found = self._leadership_move(most, leads)
            if found is not None:
                group, to = found
                self._handed_over_at = now
                many = counted(leads[group.primary], "bucket")
                why = f"{group.primary} leads {many}, and {to} {leads[to]}"
                self._elections.start(group, ElectionReason.REBALANCE, why, now, preferred=to)
                return
        self._is_leadership_balanced = True

    def _leadership_move(self, most: str, leads: dict[str, int]) -> tuple[Group, str] | None:
        """Return the last step of a path from a server to one that leads two buckets fewer. In each step,
        one server is the primary of a bucket and the next a secondary."""
        seen, ring = {most: None}, [most]
        while ring and len(seen) < _MAX_VISITED:
            steps: dict[str, Group] = {}
            for name in ring:
                for group in self._led(name):
                    for each in group.secondaries:
                        if each in leads and each not in seen:
                            steps.setdefault(each, group)
            if steps:
                least = min(steps, key=lambda name: (leads[name], name))
                if leads[most] - leads[least] >= 2:
                    return steps[least], least
            seen.update(dict.fromkeys(steps))
            ring = list(steps)
        return None

    def _led(self, name: str) -> list[Group]:
        """Return the groups that a server leads and may hand over."""
        now = self._checked_at
        found = (self._movable(bucket) for bucket in self._view.servers.of[name].leads)
        return [each for each in found if each and not self._repair.is_postponed(each.bucket, now)]


def _with(group: Group) -> Group:
    """Return the group after its learners have caught up."""
    return replace(group, secondaries=(*group.secondaries, *group.learners))
