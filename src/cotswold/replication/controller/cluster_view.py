"""The leader's view of the cluster: keeps the groups of buckets and the replicas of servers consistent.

Knows: the bucket map, servers, why groups change. Does not know: placement.

A server has a replica as long as any group names it, be it committed, in flight, or pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.replication.controller.bucket_map import DRAIN_DONE, BucketMap, CommittedChanges
from cotswold.replication.controller.server_registry import ServerRegistry
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.wire import Group


@dataclass(frozen=True)
class Reason:
    """Reason for a change of a group, in words."""

    single: str = ""
    """For a sentence about one bucket."""
    per_bucket: str = ""
    """For a sentence about many buckets with the same reason."""


class ClusterView:
    """A leader's view of the cluster."""

    def __init__(self, control: ControllerSettings, since: float) -> None:
        """``since``: time at which it began to lead."""
        self.control, self.since = control, since
        self.map, self.servers = BucketMap(), ServerRegistry()
        self.learning: dict[str, None] = {}
        """Buckets that have, or will have, a learner."""
        self.under_replicated: dict[str, None] = {}
        """Under-replicated buckets."""
        self.reasons: dict[str, Reason] = {}
        """Reason for the next group of a bucket."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """Committed groups, by bucket."""
        return self.map.groups

    def load(self, items: Mapping[str, str]) -> list[Group]:
        """Load a page of committed keys and return its groups."""
        groups = self.map.load(items)
        for group in groups:
            self._expect(group.bucket, None, group)
            self._measure(group)
        return groups

    def finish_loading(self) -> None:
        """Finish loading: all committed keys are loaded."""
        self.map.finish_loading()
        for server, seconds in self.map.drains.items():
            if seconds == DRAIN_DONE:
                self.servers.add_absent(server)
            self.servers.set_drained(server, True, self._lease_limit)

    def propose(self, group: Group, why: str = "", *, per_bucket: str = "") -> None:
        """Propose a group for the next transaction; ``why`` and ``per_bucket`` [``why``] make its
        `Reason`."""
        before = self.map.intended(group.bucket)
        self.map.propose(group)
        self.reasons[group.bucket] = Reason(why, per_bucket or why)
        self._expect(group.bucket, before, group)

    def cancel_pending(self, bucket: str) -> None:
        """Cancel a pending group that is not in flight."""
        group = self.map.cancel_pending(bucket)
        if group is not None:
            self.reasons.pop(bucket, None)
            self._expect(bucket, group, self.map.intended(bucket))
            self._release(group)

    def remove(self, run: str) -> None:
        """Delete a run and cancel its pending groups."""
        self.map.remove(run)
        for bucket in sorted(self.map.in_transition):
            if self.map.is_removed(bucket):
                self.cancel_pending(bucket)

    def commit(self) -> CommittedChanges:
        """Apply the committed transaction."""
        written = self.map.commit()
        for old, group in written.groups:
            if old is not None:
                self._release(old)
            self._measure(group)
        for group in written.deleted:
            self.cancel_pending(group.bucket)
            self._expect(group.bucket, group, None)
            self._release(group)
            self.under_replicated.pop(group.bucket, None)
        return written

    @property
    def _lease_limit(self) -> float:
        return self.since + self.control.lease_seconds

    def _expect(self, bucket: str, before: Group | None, group: Group | None) -> None:
        """Replace the intended group of a bucket in the records of its servers."""
        for name in () if group is None else group.all_servers:
            self.servers.get_or_add(name, self._lease_limit)
            self.servers.add_copy(name, bucket)
        if before is not None:
            self.servers.of[before.primary].leads.pop(bucket, None)
        self.learning.pop(bucket, None)
        if group is not None:
            self.servers.of[group.primary].leads[bucket] = None
            if group.learners:
                self.learning[bucket] = None

    def _release(self, old: Group) -> None:
        """Remove the replica from servers that no group names any more."""
        named = {name for each in self.map.all_of(old.bucket) for name in each.all_servers}
        for name in old.all_servers:
            if name not in named:
                self.servers.remove_copy(name, old.bucket)

    def _measure(self, group: Group) -> None:
        if len(group.members) < self.control.replication_factor:
            self.under_replicated[group.bucket] = None
        else:
            self.under_replicated.pop(group.bucket, None)
