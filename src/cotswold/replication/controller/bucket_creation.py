"""Initial placement of a run's buckets: evenly, on different hosts where possible.

Knows: buckets to create, servers that may receive replicas. Does not know: runs, the metadata store.

    request                                                   action
    buckets, and enough servers                               commit the description, then the first groups
    the same again                                            create only unknown buckets
    more than can be placed between two heartbeats            create the rest in later ticks
    the run was deleted meanwhile                             ignore it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.load_index import LoadIndex
from cotswold.replication.controller.run_deletion import RunDeletion
from cotswold.replication.controller.server_registry import ServerRegistry
from cotswold.wire import Create, Group

_AT_ONCE = 2000
"""Buckets placed per tick, so that heartbeats are answered in between."""
_MANY = 1 << 24
"""More replicas than any server has."""


class BucketCreation:
    """Buckets that a leader has yet to create."""

    def __init__(self, board: ClusterView, forgetting: RunDeletion) -> None:
        self._board, self._forgetting = board, forgetting
        self._wanted: dict[str, Iterator[str]] = {}
        """Buckets to create, by run."""

    def create(self, wanted: Create) -> int | None:
        """Return the number of new buckets; None if there are too few servers or the run was deleted."""
        run, known, servers = wanted.run, self._board.map, self._board.servers
        if len(servers.loads.ascending) < max(1, wanted.servers) or self._forgetting.is_removed(run):
            return None
        if run in self._wanted:
            return 0
        new = [bucket for bucket in wanted.buckets if not known.is_known(bucket)]
        if new:
            known.describe(run, wanted.description)
            self._wanted[run] = iter(new)
            self.tick()
        return len(new)

    def tick(self) -> None:
        """Create the next buckets."""
        for run, buckets in list(self._wanted.items())[:1]:
            some = [] if self._forgetting.is_removed(run) else list(islice(buckets, _AT_ONCE))
            if some and not self._board.servers.loads.ascending:
                return  # no server is available
            for group in initial_groups(some, self._board.control.copies, self._board.servers):
                self._board.put(group)
            if len(some) < _AT_ONCE:
                del self._wanted[run]


def initial_groups(buckets: Iterable[str], copies: int, servers: ServerRegistry) -> Iterator[Group]:
    """Yield the first group of each bucket. Every server gets as many of these buckets; ties go to the
    server with the fewest replicas in all. The same holds for primaries."""
    loads, own, leads = LoadIndex(), dict[str, int](), dict[str, int]()
    for load, name in servers.loads.ascending:
        own[name], leads[name] = load, len(servers.of[name].leads)
        loads.put(name, servers.of[name].host, load)
    for bucket in buckets:
        members: list[str] = []
        while len(members) < copies:
            place = loads.place({servers.of[each].host for each in members}, members)
            if place is None:
                break
            members.append(place)
            own[place] += _MANY
            loads.put(place, servers.of[place].host, own[place])
        members.sort(key=lambda name: leads[name])
        leads[members[0]] += _MANY
        yield Group(bucket, 1, members[0], tuple(members[1:]))
