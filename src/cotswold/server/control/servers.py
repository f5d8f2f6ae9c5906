"""Servers as whoever leads the controllers knows them: who lives, whose lease may hold, what each has.

Knows: when each was heard, until when a lease that it was given may hold, how many copies it has. Does not
know: groups, who is elected.

    a server            what happens                                 next
    unknown             Here                                         LIVING
    LIVING              silent until no lease of it can hold         GONE
    LIVING              its supervisor has seen it end               GONE, at once and for ever
    GONE                Here                                         LIVING: it was cut off, or stopped

Of servers that were named by whoever led before, and have said nothing to this one, a lease may hold as long
as one that was given when this one began to lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cotswold.server.messages import Here


@dataclass
class Known:
    """One server."""

    name: str
    host: str = ""
    address: str = ""
    peer_address: str = ""
    """Where other servers reach it."""
    is_living: bool = True
    held_until: float = 0.0
    """When no lease of it can hold any more, by the controller's clock."""
    has_ended: bool = False
    """Whether its supervisor has seen the process end."""
    copies: set[str] = field(default_factory=set)
    """Buckets of which it has, or is to have, a copy."""
    leads: int = 0
    """Of how many it is the primary."""


class Servers:
    """All that were ever named."""

    def __init__(self) -> None:
        self.of: dict[str, Known] = {}

    def heard(self, here: Here) -> Known:
        """A server says that it lives; whoever has ended does not come back by that."""
        known = self.of.setdefault(here.server, Known(here.server))
        known.host, known.address = here.host, here.address
        known.peer_address = here.peer_address or here.address
        known.is_living = not known.has_ended
        return known

    def named(self, name: str, held_until: float) -> Known:
        """A group names a server that may not have said anything yet."""
        if name not in self.of:
            self.of[name] = Known(name, held_until=held_until)
        return self.of[name]

    def ended(self, name: str) -> bool:
        """Its process has ended: whether that is news."""
        known = self.of.setdefault(name, Known(name))
        is_news = known.is_living
        known.has_ended, known.is_living = True, False
        return is_news

    def gone(self, now: float) -> list[Known]:
        """Those whose last lease is over with this moment."""
        found = [each for each in self.of.values() if each.is_living and now > each.held_until]
        for each in found:
            each.is_living = False
        return found

    def may_act(self, name: str, now: float) -> bool:
        """Whether a lease of it may hold."""
        known = self.of[name]
        return not known.has_ended and now <= known.held_until

    def lives(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.of and self.of[name].is_living

    @property
    def living(self) -> list[Known]:
        """Those that are there."""
        return [each for each in self.of.values() if each.is_living]

    def place(self, members: Iterable[str], avoid: Iterable[str], loads: Mapping[str, int]) -> Known | None:
        """Where another copy goes: to a host that has none of ``members`` where there is one, to the server
        that has the fewest; ``loads`` are copies that are on their way."""
        there, not_to = set(members), set(avoid)
        hosts = {self.of[each].host for each in there if each in self.of}
        free = [each for each in self.living if each.name not in there and each.name not in not_to]

        def cost(one: Known) -> tuple[bool, int, str]:
            return one.host in hosts, len(one.copies) + loads.get(one.name, 0), one.name

        return min(free, key=cost, default=None)
