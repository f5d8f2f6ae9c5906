"""Groups as they are and as they are to be, and the servers that have them: what one says, the other knows.

Knows: the map, servers, why groups change. Does not know: who is to have what.

A server has a copy as long as any group names it that is written down, on its way, or to be put.
"""

from __future__ import annotations

from collections.abc import Mapping

from cotswold.replication.controller.bucket_map import DONE, Map, Written
from cotswold.replication.controller.server_registry import Servers
from cotswold.replication.controller.settings import Control
from cotswold.wire import Group


class Board:
    """That of a leader."""

    def __init__(self, control: Control, since: float) -> None:
        """``since``: when it began to lead."""
        self.control, self.since = control, since
        self.map, self.servers = Map(), Servers()
        self.learning: dict[str, None] = {}
        """Buckets that have a learner, or are to have one."""
        self.short: dict[str, None] = {}
        """Buckets with fewer members than there are to be."""
        self.reasons: dict[str, str] = {}
        """Why the next group of a bucket is another, in words."""

    @property
    def groups(self) -> Mapping[str, Group]:
        """As they are written down."""
        return self.map.groups

    def load(self, items: Mapping[str, str]) -> list[Group]:
        """This is written down, and more may be; the groups of it."""
        groups = self.map.load(items)
        for group in groups:
            self._expect(group.bucket, None, group)
            self._measure(group)
        return groups

    def loaded(self) -> None:
        """That was all."""
        self.map.loaded()
        for server, seconds in self.map.drains.items():
            if seconds == DONE:
                self.servers.away(server)
            self.servers.drained(server, True, self._named_until)

    def put(self, group: Group, why: str = "") -> None:
        """A group is to be written down."""
        before = self.map.intended(group.bucket)
        self.map.put(group)
        self.reasons[group.bucket] = why
        self._expect(group.bucket, before, group)

    def call_back(self, bucket: str) -> None:
        """A group that is not on its way is not to be written down."""
        group = self.map.call_back(bucket)
        if group is not None:
            self.reasons.pop(bucket, None)
            self._expect(bucket, group, self.map.intended(bucket))
            self._release(group)

    def remove(self, run: str) -> None:
        """Nothing of a run is to be left."""
        self.map.remove(run)
        for bucket in sorted(self.map.moving):
            if self.map.is_removed(bucket):
                self.call_back(bucket)

    def done(self) -> Written:
        """What was on its way is written down."""
        written = self.map.done()
        for old, group in written.groups:
            if old is not None:
                self._release(old)
            self._measure(group)
        for group in written.deleted:
            self.call_back(group.bucket)
            self._expect(group.bucket, group, None)
            self._release(group)
            self.short.pop(group.bucket, None)
        return written

    @property
    def _named_until(self) -> float:
        return self.since + self.control.lease_seconds

    def _expect(self, bucket: str, before: Group | None, group: Group | None) -> None:
        """This is intended, and no more that."""
        for name in () if group is None else group.everybody:
            self.servers.named(name, self._named_until)
            self.servers.has(name, bucket)
        if before is not None:
            self.servers.of[before.primary].leads.pop(bucket, None)
        self.learning.pop(bucket, None)
        if group is not None:
            self.servers.of[group.primary].leads[bucket] = None
            if group.learners:
                self.learning[bucket] = None

    def _release(self, old: Group) -> None:
        """Whom nothing names any more has no copy."""
        named = {name for each in self.map.all_of(old.bucket) for name in each.everybody}
        for name in old.everybody:
            if name not in named:
                self.servers.has_not(name, old.bucket)

    def _measure(self, group: Group) -> None:
        if len(group.members) < self.control.copies:
            self.short[group.bucket] = None
        else:
            self.short.pop(group.bucket, None)
