"""Buckets of a run that begins: who gets which, evenly, on different hosts where there are.

Knows: servers that may have more. Does not know: when buckets are made, what a run is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cotswold.server.control.loads import Loads
from cotswold.server.control.servers import Servers
from cotswold.server.messages import Group

_MANY = 1 << 24
"""More copies than a server has."""


def dealt(buckets: Iterable[str], copies: int, servers: Servers) -> Iterator[Group]:
    """The first group of each: as many of these on every server, and of those that have as many of these more
    on whoever has fewer in all."""
    loads, own = Loads(), dict[str, int]()
    leads: dict[str, int] = {}
    for load, name in servers.loads.ascending:
        own[name], leads[name] = load, 0
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
        leads[members[0]] += 1
        yield Group(bucket, 1, members[0], tuple(members[1:]))
