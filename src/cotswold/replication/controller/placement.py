"""What is next for a bucket whose primary lives: a copy more, one less, or another primary.

Knows: its group, which servers live and are drained, where there is room. Does not know: what is under way,
when anything is done.

    the group                                                     what is next
    a member's process, or a learner's, has ended                 without it
    a learner is to have no copy, for its server is drained       without it
    it has a learner                                              that is waited for
    fewer members stay than there are to be, a server is free     it gets a learner
    others stay, enough or all there can be, a secondary leaves   without that
    the same, the primary leaves                                  another primary
    nobody could take the place of whoever leaves                 it waits, and says so
    more members than there are to be, all of which live          without one that can be done without

Whoever is drained leaves, the others stay. Of those there must be `least`, and one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cotswold.replication.controller.server_registry import Servers
from cotswold.replication.controller.settings import Control
from cotswold.wire import Group
from cotswold.wire.names import spoken


@dataclass(frozen=True)
class Add:
    """A server is to have a copy."""

    server: str
    is_urgent: bool
    """Whether there are too few."""


@dataclass(frozen=True)
class Drop:
    """Servers are to have none."""

    servers: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class HandOver:
    """Another is to be the primary, and this one is to have no copy."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Nothing can be done."""

    why: str
    until: str
    """``learner``, ``server`` (another that is free) or ``time``."""


Step = Add | Drop | HandOver | Wait
_NAMED = 3
"""Servers that a sentence names."""


def next_step(
    group: Group, servers: Servers, control: Control, avoid: Collection[str], is_late: bool
) -> Step | None:
    """What is next; None where all is as it is to be.

    ``avoid``: servers that were silent to its primary; ``is_late``: whether a server that is drained waits no
    more for one that learns.
    """
    of = servers.of
    ended = tuple(each for each in group.everybody[1:] if of[each].has_ended)
    if ended:
        return Drop(ended, "its process has ended")
    leaving = [each for each in group.everybody if of[each].is_drained]
    late = tuple(each for each in leaving if each in group.learners)
    if late:
        return Drop(late, "it is drained")
    staying = [each for each in group.members if each not in leaving]
    is_enough = sum(of[each].is_living for each in staying) >= max(1, control.least)
    if group.learners and not (is_late and leaving and is_enough):
        return Wait(f"{group.learners[0]} learns what {group.primary} has", "learner")
    if len(staying) < control.copies and not group.learners:
        place = servers.place(group.everybody, avoid)
        if place is not None:
            return Add(place, len(group.members) < control.copies)
        if avoid and servers.place(group.everybody, ()) is not None:
            return Wait(f"{', '.join(sorted(avoid))} did not answer its primary, and is avoided", "time")
    if leaving:
        if is_enough:
            return _without(group, leaving)
        names = ", ".join(leaving)
        what = f"no other server can take {spoken(group.bucket)} from {names}"
        return Wait(f"{what}: add a server, or take {names} back", "server")
    if len(staying) > control.copies and all(of[each].is_living for each in staying):
        dropped = surplus(group, servers)
        if dropped == group.primary:
            return HandOver(f"{dropped} has more copies than others")
        return Drop((dropped,), "others have fewer copies")
    if len(staying) < control.copies:
        return Wait(_too_few(servers), "server")
    return None


def _too_few(servers: Servers) -> str:
    """How many servers there are for copies, and what would give more."""
    drained = sorted(each.name for each in servers.of.values() if each.is_drained)
    count = sum(not each.is_drained for each in servers.living)
    there = f"{count} servers are there" if count != 1 else "one server is there"
    if not drained:
        return f"{there}: add a server (`cotswold cluster add`)"
    named = ", ".join(drained[:_NAMED]) + (", …" if drained[_NAMED:] else "")
    are = "is" if len(drained) == 1 else "are"
    back = f"take one back (`cotswold cluster drain {drained[0]} --back`)"
    return f"{there}, and {named} {are} drained: {back}, or add a server (`cotswold cluster add`)"


def _without(group: Group, leaving: list[str]) -> Step:
    secondaries = tuple(each for each in leaving if each != group.primary)
    if secondaries:
        return Drop(secondaries, "it is drained")
    return HandOver(f"{group.primary} is drained")


def surplus(group: Group, servers: Servers) -> str:
    """Whom a bucket can best do without: who shares a host with another, or has the most; rather a secondary
    than the primary."""
    hosts = [servers.of[each].host for each in group.members]

    def cost(name: str) -> tuple[bool, int, bool, str]:
        known = servers.of[name]
        return hosts.count(known.host) > 1, len(known.copies), name != group.primary, name

    return max(group.members, key=cost)
