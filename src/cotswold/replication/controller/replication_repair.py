"""Replication repair: reconcile each bucket with its replication factor.

Knows: which buckets are due, which wait for a server or a time, which servers are avoided for a while.
Does not know: the next step for a bucket (`placement`), how a primary is elected.

    bucket                                          action
    its group was committed                         reconcile it
    no step is needed, or one has begun             reconcile it after the next commit
    it waits for a server                           reconcile it when one is available
    it waits for a time                             reconcile it then
    its primary cannot reach a replica              a group without it; avoid its server for a while
    a live member is to be dropped                  first the others confirm that they are alive
                                                      (`RemovalCheck`)
    its primary is lost                             an election

Confirmation that members are alive, before the replica of a live server is dropped.

A server that has just died counts as alive until its lease expires. If a replica were dropped meanwhile, the
last copy of a bucket could be lost. So the members that stay first confirm the current group. A reply carries
the number of its request: replies to older requests are ignored.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.election import ElectionManager, ElectionReason
from cotswold.replication.controller.placement import (
    AddReplica,
    DropReplicas,
    HandOverPrimary,
    Postponement,
    next_step,
)
from cotswold.wire import Assign, Assigned, Group, Send

CONFIRMATION_SECONDS = 0.5
"""Seconds for which replies are valid; then the members are asked again."""
_BATCH = 500
"""Buckets reconciled per tick, so that heartbeats are answered in between."""
_WAIT_SECONDS = 1.0


class ReplicationRepair:
    """The repairs of a leader."""

    def __init__(self, view: ClusterView, elections: ElectionManager, removal_check: RemovalCheck) -> None:
        self._view, self._elections, self._removal_check = view, elections, removal_check
        self._queue: OrderedDict[str, None] = OrderedDict()
        self.postponed: dict[str, Postponement] = {}
        """Buckets that wait for a server or a time."""
        self._later: list[tuple[float, str]] = []
        self._avoided: dict[str, dict[str, float]] = {}
        """Avoided servers by bucket, each with the time at which that ends."""
        self._unreachable: dict[str, tuple[Group, frozenset[str], float]] = {}
        """Reports to act on, by bucket: the group, the servers that its primary cannot reach, the expiry of
        the report."""
        self._postponed: dict[str, float] = {}
        """Time until which no planned election of a bucket begins."""
        self.overdue: dict[str, None] = {}
        """Drained servers that no longer wait for learners."""

    def enqueue(self, buckets: Iterable[str]) -> None:
        """Enqueue buckets to be reconciled."""
        self._queue.update(dict.fromkeys(buckets))

    def server_available(self) -> None:
        """Enqueue all waiting buckets: a server is available."""
        self.enqueue(self.postponed)

    def forget(self, bucket: str) -> None:
        """Forget a deleted bucket."""
        for each in (self._queue, self.postponed, self._avoided, self._unreachable, self._postponed):
            each.pop(bucket, None)

    def remove_unreachable(self, group: Group, servers: set[str], now: float) -> None:
        """Remove servers that the primary cannot reach, once the others have confirmed that they are
        alive; avoid them for a while."""
        self._unreachable[group.bucket] = group, frozenset(servers), now + self._view.control.lease_seconds
        self.reconcile(group.bucket, now)

    def _drop_unreachable(self, group: Group, now: float) -> bool:
        """Remove unreachable servers; False if there are none."""
        of, servers, until = self._unreachable.get(group.bucket, (None, frozenset[str](), 0.0))
        if of is None:
            return False
        if of != group or now >= until:  # the primary reports again if it still holds
            del self._unreachable[group.bucket]
            return False
        if self._may_drop(group, servers, now):
            del self._unreachable[group.bucket]
            end = now + self._view.control.placement_cooldown_seconds
            self._avoided.setdefault(group.bucket, {}).update(dict.fromkeys(sorted(servers), end))
            self.drop(group, servers, f"{group.primary} cannot reach it")
        else:
            heapq.heappush(self._later, (now + CONFIRMATION_SECONDS, group.bucket))
        return True

    def drop(self, group: Group, names: Iterable[str], reason: str) -> None:
        """Propose a group without these servers; enqueue the bucket instead if it has a change in
        progress."""
        if not self._elections.is_settled(group.bucket):
            self._queue[group.bucket] = None
            return
        secondaries = tuple(each for each in group.secondaries if each not in names)
        learners = tuple(each for each in group.learners if each not in names)
        term = group.term + 1
        self._view.propose(replace(group, term=term, secondaries=secondaries, learners=learners), reason)

    def postpone(self, bucket: str, until: float) -> None:
        """Begin no planned election of the bucket until then: the last one was abandoned."""
        self._postponed[bucket] = until
        heapq.heappush(self._later, (until, bucket))

    def is_postponed(self, bucket: str, now: float) -> bool:
        """True if planned elections of the bucket are postponed."""
        if self._postponed.get(bucket, now) <= now:
            self._postponed.pop(bucket, None)
        return bucket in self._postponed

    def tick(self, now: float) -> None:
        """Process the passing of time."""
        while self._later and self._later[0][0] <= now:
            self._queue[heapq.heappop(self._later)[1]] = None
        for _ in range(min(len(self._queue), _BATCH)):
            self.reconcile(self._queue.popitem(last=False)[0], now)

    def reconcile(self, bucket: str, now: float) -> None:
        """Reconcile a bucket: begin its next step."""
        view, servers, group = self._view, self._view.servers, self._view.groups.get(bucket)
        if group is None or not self._elections.is_settled(bucket):
            return
        self.postponed.pop(bucket, None)
        if not servers.is_alive(group.primary):
            if not servers.may_act(group.primary, now):
                self._elections.start(group, ElectionReason.LOST, f"primary {group.primary} is lost", now)
            return
        if self._drop_unreachable(group, now):
            return
        is_late = bool(self.overdue) and any(each in self.overdue for each in group.all_servers)
        match next_step(group, servers, view.control, self._avoid(group, now), is_late):
            case AddReplica(server, is_urgent) if (
                is_urgent or len(view.learning) < 4 * view.control.max_concurrent_moves
            ):
                term, count = group.term + 1, len(group.members)
                has = f"has {count} {'copy' if count == 1 else 'copies'}"
                view.propose(
                    replace(group, term=term, learners=(server,)), f"it {has}", per_bucket=f"each {has}"
                )
            case DropReplicas(names, why) if self._may_drop(group, names, now):
                self.drop(group, names, why)
            case DropReplicas():
                heapq.heappush(self._later, (now + CONFIRMATION_SECONDS, bucket))
            case HandOverPrimary(why) if not self.is_postponed(bucket, now):
                self._elections.start(group, ElectionReason.DRAINED, why, now)
            case Postponement() as wait:
                if wait.until != "learner":
                    self.postponed[bucket] = wait
                if wait.until == "time":
                    heapq.heappush(self._later, (now + _WAIT_SECONDS, bucket))
            case _:
                pass

    def _may_drop(self, group: Group, names: Collection[str], now: float) -> bool:
        """True if others have the data of these servers: live members that stay have just confirmed."""
        servers = self._view.servers
        if not any(each in group.members and servers.is_alive(each) for each in names):
            return True
        staying = [each for each in group.members if each not in names and servers.is_alive(each)]
        return self._removal_check.have_confirmed(group, staying, now)

    def avoided(self, bucket: str) -> list[str]:
        """Return the servers that receive no replica of the bucket."""
        return list(self._avoided.get(bucket, ()))

    def is_avoided(self, bucket: str, server: str) -> bool:
        """True if the server receives no replica of the bucket."""
        return bucket in self._avoided and server in self._avoided[bucket]

    def _avoid(self, group: Group, now: float) -> list[str]:
        """Return the avoided servers and forget those whose time is over. A bucket with too few members,
        or only one, and with no other server avoids them only briefly."""
        bucket, control, servers = group.bucket, self._view.control, self._view.servers
        avoided = self._avoided.get(bucket)
        if avoided is None:
            return []
        is_needy = len(group.members) < min(
            control.replication_factor, max(control.replication_factor_min, 2)
        )
        if is_needy and servers.choose_host(group.all_servers, avoided) is None:
            now += control.placement_cooldown_seconds - control.retry_placement_seconds
        left = {server: until for server, until in avoided.items() if until > now}
        self._avoided[bucket] = left
        if not left:
            del self._avoided[bucket]
        return list(left)


@dataclass
class _Question:
    number: int
    group: Group
    members: tuple[str, ...]
    asked_at: float
    answers: dict[str, None] = field(default_factory=dict)


class RemovalCheck:
    """Removal checks of a leader."""

    def __init__(self, epoch: int) -> None:
        self._epoch, self._number = epoch, 0
        self._of: dict[str, _Question] = {}
        self._sends: list[Send] = []

    def have_confirmed(self, group: Group, members: Collection[str], now: float) -> bool:
        """True if all of these members have confirmed the group just now; otherwise ask them."""
        question = self._of.get(group.bucket)
        if question is None or question.group != group or now - question.asked_at > CONFIRMATION_SECONDS:
            self._number += 1
            question = _Question(self._number, group, tuple(members), now)
            self._of[group.bucket] = question
            assign = Assign(self._epoch, group, question.number)
            self._sends += [Send(name, assign) for name in members]
        return all(name in question.answers for name in members)

    def record_reply(self, assigned: Assigned) -> bool:
        """Record a reply; True if all members of the request have confirmed."""
        question = self._of.get(assigned.bucket)
        if question is None or assigned.number != question.number or assigned.term != question.group.term:
            return False
        question.answers[assigned.server] = None
        return all(name in question.answers for name in question.members)

    def forget(self, bucket: str) -> None:
        """Forget a bucket whose group has changed or was deleted."""
        self._of.pop(bucket, None)

    def take_messages(self) -> list[Send]:
        """Return the requests to send."""
        sends, self._sends = self._sends, []
        return sends
