"""Plans of a reduction: which rank sends which range of a vector to which, and in what order.

Knows: ranks, ranges, stages: integers only. Does not know: tensors, sockets, rates (`reduction_time`),
algorithms (`reduction_plans`).

Every rank has a vector of ``count`` elements. A step sends a range of the sender's vector to the receiver,
which adds it to its own or replaces its own. The sender first waits for all earlier stages in this range.
Steps wait for nothing else: stages order the steps of one rank and range, and are no barrier between ranks.
The executor cuts ranges into pieces (`pieces`), which pass through the stages as a pipeline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cotswold.errors import GeometryError

RANKS_MOST = 1 << 16
STEPS_MOST = 1 << 20


class Step(NamedTuple):
    """One message of a plan, before it is cut into pieces: elements ``begin`` to ``end - 1``.

    Args:
        stage: Position in the order of steps, from 0.
        sender: Sending rank.
        receiver: Receiving rank.
        begin: First element of the range.
        end: End of the range.
        is_sum: True if the receiver adds the elements to its own; False if it replaces its own.
        lane: Network to use, if hosts have several cards.
    """

    stage: int
    sender: int
    receiver: int
    begin: int
    end: int
    is_sum: bool = True
    lane: int = 0


class Item(NamedTuple):
    """One send or receive of a rank for one piece."""

    stage: int
    sends: bool
    other: int
    """Rank at the other end."""
    is_sum: bool
    lane: int


@dataclass(frozen=True)
class ReductionPlan:
    """Plan that sums the vectors of several ranks.

    Args:
        ranks: Number of ranks.
        root: Rank that has the sum at the end, or None if all have it.
        count: Elements of a vector.
        steps: Messages of the plan.

    Raises:
        GeometryError: Too many ranks or steps, or a step between ranks or in a range that does not exist.
    """

    ranks: int
    root: int | None
    count: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS_MOST or self.count < 0 or len(self.steps) > STEPS_MOST:
            raise GeometryError(
                f"a plan needs 1 to {RANKS_MOST} ranks, a count of 0 or more and up to {STEPS_MOST} steps, "
                f"got {self.ranks} ranks, {self.count} elements and {len(self.steps)} steps"
            )
        if self.root is not None and not 0 <= self.root < self.ranks:
            raise GeometryError(f"root must be a rank from 0 to {self.ranks - 1}, got {self.root}")
        for step in self.steps:
            if not (
                0 <= step.sender < self.ranks
                and 0 <= step.receiver < self.ranks
                and step.sender != step.receiver
                and 0 <= step.begin < step.end <= self.count
                and step.stage >= 0
                and step.lane >= 0
            ):
                raise GeometryError(f"{step} does not fit {self.ranks} ranks and {self.count} elements")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return max((step.stage for step in self.steps), default=-1) + 1

    @property
    def lanes(self) -> int:
        """Number of networks used."""
        return max((step.lane for step in self.steps), default=0) + 1

    def mirrored(self) -> ReductionPlan:
        """Return the broadcast plan: the root's vector goes back to all ranks along the same steps.

        >>> there = ReductionPlan(2, 0, 4, (Step(0, 1, 0, 0, 4),))
        >>> there.mirrored().steps
        (Step(stage=0, sender=0, receiver=1, begin=0, end=4, is_sum=False, lane=0),)
        """
        last = self.stages - 1
        back = sorted(
            Step(last - step.stage, step.receiver, step.sender, step.begin, step.end, False, step.lane)
            for step in self.steps
        )
        return ReductionPlan(self.ranks, self.root, self.count, tuple(back))

    def then(self, other: ReductionPlan, root: int | None = None) -> ReductionPlan:
        """Return this plan followed by another, as one plan.

        Args:
            other: Plan for the same ranks and count.
            root: Root of the combined plan [None: all ranks have the result].

        Raises:
            GeometryError: Different ranks or counts.
        """
        if (self.ranks, self.count) != (other.ranks, other.count):
            raise GeometryError(
                f"consecutive plans need equal ranks and counts, got {(self.ranks, self.count)} and "
                f"{(other.ranks, other.count)}"
            )
        later = tuple(step._replace(stage=step.stage + self.stages) for step in other.steps)
        return ReductionPlan(self.ranks, root, self.count, self.steps + later)

    def pieces(self, elements: int) -> list[tuple[int, int]]:
        """Return ranges of at most ``elements`` elements into which all steps can be cut.

        >>> ReductionPlan(2, 0, 10, (Step(0, 1, 0, 0, 5),)).pieces(4)
        [(0, 4), (4, 5), (5, 9), (9, 10)]
        """
        assert elements > 0
        edges = sorted({0, self.count, *(step.begin for step in self.steps), *(s.end for s in self.steps)})
        return [
            (at, min(at + elements, end))
            for begin, end in pairwise(edges)
            for at in range(begin, end, elements)
        ]

    def agenda(self, rank: int, pieces: Sequence[tuple[int, int]]) -> list[list[Item]]:
        """Return a rank's sends and receives of each piece, in order; within a stage it sends first.

        Args:
            rank: The rank.
            pieces: Ranges, as `pieces` returns them.
        """
        starts = [begin for begin, _ in pieces]
        agenda: list[list[Item]] = [[] for _ in pieces]
        for step in self._steps_of.get(rank, ()):
            sends = step.sender == rank
            other = step.receiver if sends else step.sender
            item = Item(step.stage, sends, other, step.is_sum, step.lane)
            for piece in range(bisect_left(starts, step.begin), bisect_left(starts, step.end)):
                agenda[piece].append(item)
        for items in agenda:
            items.sort(key=lambda one: (one.stage, not one.sends, one.other))
        return agenda

    @cached_property
    def _steps_of(self) -> Mapping[int, Sequence[Step]]:
        found: dict[int, list[Step]] = {}
        for step in self.steps:
            found.setdefault(step.sender, []).append(step)
            found.setdefault(step.receiver, []).append(step)
        return found

    def as_numbers(self) -> list[int]:
        """Return the plan as integers, for a message; see `from_numbers`."""
        root = -1 if self.root is None else self.root
        return [self.ranks, root, self.count, *(int(each) for step in self.steps for each in step)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> ReductionPlan:
        """Return the plan that `as_numbers` encoded.

        Args:
            numbers: The integers of `as_numbers`.

        Raises:
            GeometryError: Other numbers.
        """
        width = len(Step._fields)
        plain = all(isinstance(one, int) for one in numbers)
        if not plain or len(numbers) < 3 or (len(numbers) - 3) % width:
            raise GeometryError("numbers do not encode a reduction plan; pass the result of as_numbers")
        ranks, root, count = numbers[:3]
        steps = (numbers[at : at + width] for at in range(3, len(numbers), width))
        return cls(
            ranks,
            None if root == -1 else root,
            count,
            tuple(Step(a, b, c, d, e, bool(adds), lane) for a, b, c, d, e, adds, lane in steps),
        )
