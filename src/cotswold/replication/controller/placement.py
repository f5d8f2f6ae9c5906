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

Drained servers leave, the others stay. At least `replication_factor_min` members stay, and never fewer than
one.

Initial placement of a run's buckets: evenly, on different hosts where possible.

    request                                                   action
    buckets, and enough servers                               commit the description, then the first groups
    the same again                                            create only unknown buckets
    more than can be placed between two heartbeats            create the rest in later ticks
    the run was deleted meanwhile                             ignore it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.run_deletion import RunDeletion
from cotswold.replication.controller.server_registry import LoadIndex, ServerRegistry
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.wire import Create, Group
from cotswold.wire.names import display_name

_MAX_CREATIONS = 2000
"""Buckets placed per tick, so that heartbeats are answered in between."""
_UNLIMITED = 1 << 24
"""More replicas than any server has."""


@dataclass(frozen=True)
class AddReplica:
    """Add a replica on a server."""

    server: str
    is_urgent: bool
    """True if the bucket has too few replicas."""


@dataclass(frozen=True)
class DropReplicas:
    """Drop the replicas of these servers."""

    servers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class HandOverPrimary:
    """Elect another primary; this one then loses its replica."""

    reason: str


@dataclass(frozen=True)
class Postponement:
    """No step is possible now."""

    reason: str
    until: str
    """``learner``, ``server`` (another one that is free) or ``time``."""


Step = AddReplica | DropReplicas | HandOverPrimary | Postponement
_NAMED = 3
"""Maximum number of servers that a sentence names."""


def next_step(
    group: Group, servers: ServerRegistry, control: ControllerSettings, avoid: Collection[str], is_late: bool
) -> Step | None:
    """Return the next step; None if the group is complete.

    ``avoid``: servers that the primary could not reach; ``is_late``: True if a drained server no longer waits
    for learners.
    """
    of = servers.of
    ended = tuple(each for each in group.all_servers[1:] if of[each].has_exited)
    if ended:
        return DropReplicas(ended, "its process exited")
    leaving = [each for each in group.all_servers if of[each].is_drained]
    late = tuple(each for each in leaving if each in group.learners)
    if late:
        return DropReplicas(late, "it is drained")
    staying = [each for each in group.members if each not in leaving]
    is_enough = sum(of[each].is_alive for each in staying) >= max(1, control.replication_factor_min)
    if group.learners and not (is_late and leaving and is_enough):
        return Postponement(f"{group.learners[0]} copies from {group.primary}", "learner")
    if len(staying) < control.replication_factor and not group.learners:
        place = servers.choose_host(group.all_servers, avoid)
        if place is not None:
            return AddReplica(place, len(group.members) < control.replication_factor)
        if avoid and servers.choose_host(group.all_servers, ()) is not None:
            return Postponement(
                f"{', '.join(sorted(avoid))} is unreachable from the primary and is avoided", "time"
            )
    if leaving:
        if is_enough:
            return _without(group, leaving)
        names = ", ".join(leaving)
        what = f"no other server can take {display_name(group.bucket)} from {names}"
        return Postponement(f"{what}: add a server, or end the drain of {names}", "server")
    if len(staying) > control.replication_factor and all(of[each].is_alive for each in staying):
        dropped = surplus_member(group, servers)
        if dropped == group.primary:
            return HandOverPrimary(f"{dropped} has more copies than others")
        return DropReplicas((dropped,), "others have fewer copies")
    if len(staying) < control.replication_factor:
        return Postponement(_too_few_text(servers), "server")
    return None


def _too_few_text(servers: ServerRegistry) -> str:
    """Return a sentence with the number of available servers and the remedy."""
    drained = sorted(each.name for each in servers.of.values() if each.is_drained)
    count = sum(not each.is_drained for each in servers.live)
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
        return DropReplicas(secondaries, "it is drained")
    return HandOverPrimary(f"{group.primary} is drained")


def surplus_member(group: Group, servers: ServerRegistry) -> str:
    """Return the most dispensable member: one that shares a host with another, or else has the most
    replicas; preferably a secondary."""
    hosts = [servers.of[each].host for each in group.members]

    def cost(name: str) -> tuple[bool, int, bool, str]:
        known = servers.of[name]
        return hosts.count(known.host) > 1, len(known.copies), name != group.primary, name

    return max(group.members, key=cost)


class BucketCreation:
    """Buckets that a leader has yet to create."""

    def __init__(self, view: ClusterView, run_deletion: RunDeletion) -> None:
        self._view, self._run_deletion = view, run_deletion
        self._requests: dict[str, Iterator[str]] = {}
        """Buckets to create, by run."""

    def create(self, request: Create) -> int | None:
        """Return the number of new buckets; None if there are too few servers or the run was deleted."""
        run, known, servers = request.run, self._view.map, self._view.servers
        if len(servers.loads.ascending) < max(1, request.servers) or self._run_deletion.is_removed(run):
            return None
        if run in self._requests:
            return 0
        new = [bucket for bucket in request.buckets if not known.is_run_known(bucket)]
        if new:
            known.describe(run, request.description)
            self._requests[run] = iter(new)
            self.tick()
        return len(new)

    def tick(self) -> None:
        """Create the next buckets."""
        for run, buckets in list(self._requests.items())[:1]:
            some = [] if self._run_deletion.is_removed(run) else list(islice(buckets, _MAX_CREATIONS))
            if some and not self._view.servers.loads.ascending:
                return  # no server is available
            for group in initial_groups(some, self._view.control.replication_factor, self._view.servers):
                self._view.propose(group)
            if len(some) < _MAX_CREATIONS:
                del self._requests[run]


def initial_groups(buckets: Iterable[str], copies: int, servers: ServerRegistry) -> Iterator[Group]:
    """Yield the first group of each bucket. Every server gets as many of these buckets; ties go to the
    server with the fewest replicas in all. The same holds for primaries."""
    loads, own, leads = LoadIndex(), dict[str, int](), dict[str, int]()
    for load, name in servers.loads.ascending:
        own[name], leads[name] = load, len(servers.of[name].leads)
        loads.set_load(name, servers.of[name].host, load)
    for bucket in buckets:
        members: list[str] = []
        while len(members) < copies:
            place = loads.choose({servers.of[each].host for each in members}, members)
            if place is None:
                break
            members.append(place)
            own[place] += _UNLIMITED
            loads.set_load(place, servers.of[place].host, own[place])
        members.sort(key=lambda name: leads[name])
        leads[members[0]] += _UNLIMITED
        yield Group(bucket, 1, members[0], tuple(members[1:]))
