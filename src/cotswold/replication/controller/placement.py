"""The next step for a bucket with a live primary: add a replica, drop one, or change the primary.

Knows: its group, which servers are alive and drained, where replicas can go. Does not know: changes in
progress, the time of any step.

    group                                                         next step
    the process of a member or learner exited                     drop it
    the server of a learner is drained                            drop it
    it has a learner                                              wait for it
    too few members stay, and a server is free                    add a learner
    enough members stay (or all possible), a secondary leaves     drop it
    the same, and the primary leaves                              change the primary
    no server can replace a leaving one                           wait, with a reason
    more members than needed, all alive                           drop the most dispensable

Drained servers leave, the others stay. At least `min_copies` members stay, and never fewer than one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cotswold.replication.controller.server_registry import Servers
from cotswold.replication.controller.settings import Control
from cotswold.wire import Group
from cotswold.wire.names import display_name


@dataclass(frozen=True)
class Add:
    """Add a replica on a server."""

    server: str
    is_urgent: bool
    """True if the bucket has too few replicas."""


@dataclass(frozen=True)
class Drop:
    """Drop the replicas of these servers."""

    servers: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class HandOver:
    """Elect another primary; this one then loses its replica."""

    why: str


@dataclass(frozen=True)
class Wait:
    """No step is possible now."""

    why: str
    until: str
    """``learner``, ``server`` (another one that is free) or ``time``."""


Step = Add | Drop | HandOver | Wait
_NAMED = 3
"""Maximum number of servers that a sentence names."""


def next_step(
    group: Group, servers: Servers, control: Control, avoid: Collection[str], is_late: bool
) -> Step | None:
    """Return the next step; None if the group is complete.

    ``avoid``: servers that the primary could not reach; ``is_late``: True if a drained server no longer waits
    for learners.
    """
    of = servers.of
    ended = tuple(each for each in group.everybody[1:] if of[each].has_ended)
    if ended:
        return Drop(ended, "its process exited")
    leaving = [each for each in group.everybody if of[each].is_drained]
    late = tuple(each for each in leaving if each in group.learners)
    if late:
        return Drop(late, "it is drained")
    staying = [each for each in group.members if each not in leaving]
    is_enough = sum(of[each].is_living for each in staying) >= max(1, control.least)
    if group.learners and not (is_late and leaving and is_enough):
        return Wait(f"{group.learners[0]} copies from {group.primary}", "learner")
    if len(staying) < control.copies and not group.learners:
        place = servers.place(group.everybody, avoid)
        if place is not None:
            return Add(place, len(group.members) < control.copies)
        if avoid and servers.place(group.everybody, ()) is not None:
            return Wait(f"{', '.join(sorted(avoid))} is unreachable from the primary and is avoided", "time")
    if leaving:
        if is_enough:
            return _without(group, leaving)
        names = ", ".join(leaving)
        what = f"no other server can take {display_name(group.bucket)} from {names}"
        return Wait(f"{what}: add a server, or end the drain of {names}", "server")
    if len(staying) > control.copies and all(of[each].is_living for each in staying):
        dropped = surplus(group, servers)
        if dropped == group.primary:
            return HandOver(f"{dropped} has more copies than others")
        return Drop((dropped,), "others have fewer copies")
    if len(staying) < control.copies:
        return Wait(_too_few(servers), "server")
    return None


def _too_few(servers: Servers) -> str:
    """Return a sentence with the number of available servers and the remedy."""
    drained = sorted(each.name for each in servers.of.values() if each.is_drained)
    count = sum(not each.is_drained for each in servers.living)
    there = f"{count} servers are available" if count != 1 else "one server is available"
    if not drained:
        return f"{there}: add a server (`cotswold cluster add`)"
    named = ", ".join(drained[:_NAMED]) + (", …" if drained[_NAMED:] else "")
    are = "is" if len(drained) == 1 else "are"
    back = f"end a drain (`cotswold cluster drain {drained[0]} --back`)"
    return f"{there}, and {named} {are} drained: {back}, or add a server (`cotswold cluster add`)"


def _without(group: Group, leaving: list[str]) -> Step:
    secondaries = tuple(each for each in leaving if each != group.primary)
    if secondaries:
        return Drop(secondaries, "it is drained")
    return HandOver(f"{group.primary} is drained")


def surplus(group: Group, servers: Servers) -> str:
    """Return the most dispensable member: one that shares a host with another, or else has the most
    replicas; preferably a secondary."""
    hosts = [servers.of[each].host for each in group.members]

    def cost(name: str) -> tuple[bool, int, bool, str]:
        known = servers.of[name]
        return hosts.count(known.host) > 1, len(known.copies), name != group.primary, name

    return max(group.members, key=cost)
