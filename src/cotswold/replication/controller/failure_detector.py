"""Failure detector: decides from the members' reports which of them is unreachable.

Knows: reports of one term, which servers are alive. Does not know: the next group.

    reports                                                   action
    the primary and all of its secondaries cannot reach       fence the primary, then an election
      each other, and the primary is alive
    a live primary cannot reach a replica                     a group without the replica, for a while
                                                              (`replication_repair`), once the primary has
                                                              confirmed that it is alive
    soon after, it cannot reach the other live ones either    fence the primary, then an election
    a single secondary cannot reach the primary, or it is     nothing: a dead primary misses its heartbeats, a
      the only one, and controllers hear both                   live one reports unreachable replicas itself
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.election import ElectionManager, ElectionReason
from cotswold.replication.controller.replication_repair import ReplicationRepair
from cotswold.wire import Group, PeerUnreachable, PrimaryUnreachable


@dataclass
class FailureReports:
    """Failure reports about one group."""

    term: int
    started_at: float
    of_primary: set[str] = field(default_factory=set)
    """Replicas that the primary cannot reach."""
    of_secondaries: set[str] = field(default_factory=set)
    """Secondaries that cannot reach the primary."""

    def add(self, sender: str, message: PeerUnreachable | PrimaryUnreachable, group: Group) -> None:
        """Add a report if its sender may make it."""
        if isinstance(message, PeerUnreachable):
            if sender == group.primary:
                self.of_primary.add(message.replica)
        elif sender in group.secondaries:
            self.of_secondaries.add(sender)

    def is_partitioned(self, group: Group, living: set[str]) -> bool:
        """True if the primary is partitioned, rather than one of several secondaries; ``living``:
        secondaries that are alive."""
        apart = (self.of_primary | self.of_secondaries) & set(group.secondaries)
        return len(living) > 1 and living <= apart  # the primary alone, or all of them at once

    def unreachable(self, group: Group) -> set[str]:
        """Return the replicas that the primary cannot reach."""
        return self.of_primary & set(group.all_servers)


_REPEAT_SECONDS = 10.0


class FailureArbiter:
    """The failure reports of a leader, and its decisions."""

    def __init__(self, view: ClusterView, elections: ElectionManager, repair: ReplicationRepair) -> None:
        self._view, self._elections, self._repair = view, elections, repair
        self.of: OrderedDict[str, FailureReports] = OrderedDict()
        """Reports by bucket."""
        self._accused: OrderedDict[str, tuple[str, float, set[str]]] = OrderedDict()
        """Last accepted report by bucket: the primary, the time, and the replicas that it could not reach."""

    def record_report(
        self, sender: str, message: PeerUnreachable | PrimaryUnreachable, group: Group, now: float
    ) -> None:
        """Record a report."""
        complaints = self.of.setdefault(group.bucket, FailureReports(group.term, now))
        complaints.add(sender, message, group)

    def suspected_since(self, bucket: str) -> float | None:
        """Return the time of the first report about a bucket."""
        return self.of[bucket].started_at if bucket in self.of else None

    def forget(self, bucket: str) -> None:
        """Forget the reports about a bucket."""
        self.of.pop(bucket, None)

    def tick(self, now: float) -> None:
        """Decide about the reports that were collected for long enough."""
        while self.of:
            bucket, complaints = next(iter(self.of.items()))
            if now - complaints.started_at < self._view.control.failure_report_seconds:
                break
            del self.of[bucket]
            if bucket in self._view.groups:
                self._decide(self._view.groups[bucket], complaints, now)

    def _decide(self, group: Group, complaints: FailureReports, now: float) -> None:
        servers, control = self._view.servers, self._view.control
        if complaints.term != group.term or not self._elections.is_settled(group.bucket):
            return
        living = {each for each in group.secondaries if servers.is_alive(each)}
        if complaints.is_partitioned(group, living):
            why = f"primary {group.primary} and its secondaries could not reach each other"
            self._elections.start(group, ElectionReason.PARTITIONED, why, now, complaints.started_at)
            return
        silent, before = complaints.unreachable(group), self._recently_accused(group, now)
        if before and living and living <= silent - before:
            why = f"primary {group.primary} lost contact with one secondary after the other"
            self._elections.start(group, ElectionReason.PARTITIONED, why, now, complaints.started_at)
        elif silent and servers.of[group.primary].lease_until - now > control.lease_seconds / 2:
            self._accused[group.bucket] = group.primary, now, silent | before
            self._accused.move_to_end(group.bucket)
            self._repair.remove_unreachable(group, silent, now)

    def _recently_accused(self, group: Group, now: float) -> set[str]:
        """Return the replicas that the same primary reported a moment ago."""
        while self._accused and next(iter(self._accused.values()))[1] < now - _REPEAT_SECONDS:
            self._accused.popitem(last=False)
        primary, _, silent = self._accused.get(group.bucket, ("", 0.0, set[str]()))
        return silent if primary == group.primary else set()
