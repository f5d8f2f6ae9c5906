"""Plans of a reduction: who sends which range of a vector to whom, and in which order.

Knows: ranks, ranges, stages: integers only. Does not know: tensors, sockets, how fast anything is
(`reduction_time`), which plans there are (`reduction_plans`).

Every rank has a vector of ``count`` elements. A step takes a range of the sender's vector, as it is once the
sender has everything that earlier stages bring it in this range, to the receiver, which adds it to its own or
puts it in its place. Steps wait for nothing else: stages order the steps at a rank in a range, and not the
ranks. Whoever carries a plan out cuts ranges into pieces (`pieces`), and pieces follow each other through
the stages as on a conveyor.
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
    """One message of a plan, before it is cut into pieces."""

    stage: int
    sender: int
    receiver: int
    begin: int
    end: int
    """The range: elements ``begin`` to ``end - 1``."""
    adds: bool = True
    """Whether the receiver adds what comes to its own; otherwise it takes the place of its own."""
    lane: int = 0
    """Which of several networks it goes over, where hosts have several cards."""


class Item(NamedTuple):
    """What one rank does with one piece."""

    stage: int
    sends: bool
    other: int
    """The rank to which it is sent, or from which it comes."""
    adds: bool
    lane: int


@dataclass(frozen=True)
class ReductionPlan:
    """A plan for ``ranks`` vectors of ``count`` elements, the sum of which ``root`` has afterwards.

    A plan in which every rank has the sum in the end has ``root`` None. Raises GeometryError for steps
    between ranks or in ranges that there are not.
    """

    ranks: int
    root: int | None
    count: int
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS_MOST or self.count < 0 or len(self.steps) > STEPS_MOST:
            raise GeometryError(
                f"a plan for {self.ranks} ranks, {self.count} elements and {len(self.steps)} steps cannot "
                f"be; there are 1 to {RANKS_MOST} ranks and {STEPS_MOST} steps at most"
            )
        if self.root is not None and not 0 <= self.root < self.ranks:
            raise GeometryError(f"rank {self.root} is none of {self.ranks}; name a root from 0")
        for step in self.steps:
            if not (
                0 <= step.sender < self.ranks
                and 0 <= step.receiver < self.ranks
                and step.sender != step.receiver
                and 0 <= step.begin < step.end <= self.count
                and step.stage >= 0
                and step.lane >= 0
            ):
                raise GeometryError(f"{step} is no step of {self.ranks} ranks and {self.count} elements")

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return max((step.stage for step in self.steps), default=-1) + 1

    @property
    def lanes(self) -> int:
        """How many networks it uses."""
        return max((step.lane for step in self.steps), default=0) + 1

    def mirrored(self) -> ReductionPlan:
        """The broadcast: the sum, or any vector that the root has, goes the same ways back to all.

        >>> there = ReductionPlan(2, 0, 4, (Step(0, 1, 0, 0, 4),))
        >>> there.mirrored().steps
        (Step(stage=0, sender=0, receiver=1, begin=0, end=4, adds=False, lane=0),)
        """
        last = self.stages - 1
        back = sorted(
            Step(last - step.stage, step.receiver, step.sender, step.begin, step.end, False, step.lane)
            for step in self.steps
        )
        return ReductionPlan(self.ranks, self.root, self.count, tuple(back))

    def followed_by(self, other: ReductionPlan, root: int | None = None) -> ReductionPlan:
        """This plan, then the other, as one; raises GeometryError where they do not fit."""
        if (self.ranks, self.count) != (other.ranks, other.count):
            raise GeometryError("plans for other ranks or vectors cannot follow each other")
        later = tuple(step._replace(stage=step.stage + self.stages) for step in other.steps)
        return ReductionPlan(self.ranks, root, self.count, self.steps + later)

    def pieces(self, elements: int) -> list[tuple[int, int]]:
        """Ranges of ``elements`` at most into which all steps can be cut.

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
        """What a rank does with each piece, in order: of one stage it first sends."""
        starts = [begin for begin, _ in pieces]
        agenda: list[list[Item]] = [[] for _ in pieces]
        for step in self._steps_of.get(rank, ()):
            sends = step.sender == rank
            other = step.receiver if sends else step.sender
            item = Item(step.stage, sends, other, step.adds, step.lane)
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
        """The plan as plain numbers, for a message; see `from_numbers`."""
        root = -1 if self.root is None else self.root
        return [self.ranks, root, self.count, *(int(each) for step in self.steps for each in step)]

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> ReductionPlan:
        """The plan of these numbers; raises GeometryError where they are none."""
        width = len(Step._fields)
        plain = all(isinstance(one, int) for one in numbers)
        if not plain or len(numbers) < 3 or (len(numbers) - 3) % width:
            raise GeometryError("these numbers are no plan of a reduction; take what as_numbers gives")
        ranks, root, count = numbers[:3]
        steps = (numbers[at : at + width] for at in range(3, len(numbers), width))
        return cls(
            ranks,
            None if root == -1 else root,
            count,
            tuple(Step(a, b, c, d, e, bool(adds), lane) for a, b, c, d, e, adds, lane in steps),
        )
