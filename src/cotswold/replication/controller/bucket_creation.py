"""Buckets of a run that begins: who gets which, evenly, on different hosts where there are.

Knows: what is to be made, servers that may have more. Does not know: what a run is, the state.

    what is wanted                                            what follows
    buckets, and there are servers enough                     the description, then the first groups of some
    the same, again                                           nothing, but for buckets that are not known yet
    more at once than can be dealt between two heartbeats     the others a little later
    the run was removed meanwhile                             nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.load_index import Loads
from cotswold.replication.controller.run_deletion import Forgetting
from cotswold.replication.controller.server_registry import Servers
from cotswold.wire import Create, Group

_AT_ONCE = 2000
"""So many are dealt at once: heartbeats are answered meanwhile."""
_MANY = 1 << 24
"""More copies than a server has."""


class Creating:
    """What a leader has to make."""

    def __init__(self, board: Board, forgetting: Forgetting) -> None:
        self._board, self._forgetting = board, forgetting
        self._wanted: dict[str, Iterator[str]] = {}
        """Buckets that are to be made, by run."""

    def create(self, wanted: Create) -> int | None:
        """How many buckets are to be made that were not; None where there are too few servers, or the run was
        removed."""
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
        """Some more are made."""
        for run, buckets in list(self._wanted.items())[:1]:
            some = [] if self._forgetting.is_removed(run) else list(islice(buckets, _AT_ONCE))
            if some and not self._board.servers.loads.ascending:
                return  # nobody is there now
            for group in dealt(some, self._board.control.copies, self._board.servers):
                self._board.put(group)
            if len(some) < _AT_ONCE:
                del self._wanted[run]


def dealt(buckets: Iterable[str], copies: int, servers: Servers) -> Iterator[Group]:
    """The first group of each: as many of these on every server, and of those that have as many of these more
    on whoever has fewer in all; the same with primaries."""
    loads, own, leads = Loads(), dict[str, int](), dict[str, int]()
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
