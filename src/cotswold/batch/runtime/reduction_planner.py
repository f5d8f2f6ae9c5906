"""Choice of the plan of a reduction: the fastest one by prediction, for the workers' machines.

Knows: machines of workers, their network rate. Does not know: vectors, messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cotswold.geometry.reduction import ReductionPlan, Step
from cotswold.geometry.reduction_time import Host, Network, NetworkCard, best_plan
from cotswold.wire import ReductionSchedule


class ReductionPlanner:
    """Plans for vectors of ``size`` elements between workers; ``machine_of`` returns a worker's machine."""

    def __init__(
        self, size: int, element_bytes: int, machine_of: Callable[[str], str], link_bits_per_second: int
    ) -> None:
        self._size, self._element_bytes, self._machine_of = size, element_bytes, machine_of
        self._network_card = NetworkCard(0, link_bits_per_second)
        self._chosen: dict[tuple[int, ...], ReductionPlan] = {}
        """Plans by the hosts of the ranks; cached because the choice takes some milliseconds."""
        self._complaints: set[tuple[str, str]] = set()
        self._disconnected: set[frozenset[str]] = set()
        """Pairs of workers, or of machines, that cannot reach each other."""

    def report_disconnect(self, member: str, peer: str) -> None:
        """Record that a worker could not reach another. Their machines count as separated after the
        second report: the first may be due to a death, and dead workers are in no later plan."""
        if (member, peer) in self._complaints:
            machines = frozenset((self._machine_of(member), self._machine_of(peer)))
            self._disconnected.add(machines if len(machines) == 2 else frozenset((member, peer)))
        self._complaints.add((member, peer))

    def __call__(self, members: Sequence[str]) -> ReductionSchedule:
        """Return a plan over these workers; the first member of the plan receives the sum."""
        numbers: dict[str, int] = {}
        hosts = tuple(numbers.setdefault(self._machine_of(name), len(numbers)) for name in members)
        if hosts not in self._chosen:
            ranks = [
                tuple(rank for rank, host in enumerate(hosts) if host == one) for one in range(len(numbers))
            ]
            network = Network(tuple(Host(each, (self._network_card,)) for each in ranks))
            self._chosen[hosts] = best_plan(network, self._size, self._element_bytes, 0)[1]
        plan = _written(members, self._chosen[hosts].steps)
        if all(self._can_connect(members[step[1]], members[step[2]]) for step in plan.steps):
            return plan
        return self._star(members) or plan

    def _star(self, members: Sequence[str]) -> ReductionSchedule | None:
        """Return a plan in which all send to one member that every other reaches, if one exists."""
        for first in members:
            others = [one for one in members if one != first]
            if all(self._can_connect(first, one) for one in others):
                steps = [Step(rank, rank + 1, 0, 0, self._size) for rank in range(len(others))]
                return _written([first, *others], steps)
        return None

    def _can_connect(self, one: str, other: str) -> bool:
        machines = frozenset((self._machine_of(one), self._machine_of(other)))
        return frozenset((one, other)) not in self._disconnected and machines not in self._disconnected


def _written(members: Sequence[str], steps: Sequence[Step]) -> ReductionSchedule:
    return ReductionSchedule(
        tuple(members), tuple((*step[:5], int(step.is_sum), step.lane) for step in steps)
    )


def reduction_of(plan: ReductionSchedule, size: int) -> ReductionPlan:
    """Return the plan in a message; raise GeometryError if it is invalid."""
    steps = []
    for stage, sender, receiver, begin, end, *rest in plan.steps:
        adds, lane = rest or (1, 0)
        steps.append(Step(stage, sender, receiver, begin, end, bool(adds), lane))
    return ReductionPlan(len(plan.members), 0, size, tuple(steps))
