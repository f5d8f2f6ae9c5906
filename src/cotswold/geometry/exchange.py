"""Exchange plans: who sends which part of a distributed array to whom (Coates et al. 2013, section 4.2).

Knows: the box that each rank writes and the box that it reads in a global array, their intersections.
Does not know: tensors, messages, processes. Every rank computes the same plan by itself, from integers.

What rank ``t`` reads at a point is the sum of what all ranks wrote there; where boxes that are written do not
overlap, that is a copy (*fetch*). With the roles of the boxes exchanged the same plan is the adjoint
(*overlap-sum*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cotswold.errors import GeometryError
from cotswold.geometry.box import Box


@dataclass(frozen=True)
class Transfer:
    """A box of the global array that rank ``source`` sends to rank ``target``."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True)
class ExchangePlan:
    """``writes[i]`` is the box that rank i writes, ``reads[i]`` the box that it reads; boxes of any overlap.

    Raises GeometryError where there are not as many of either, or boxes differ in their dimensions.

    >>> halves = (Box((0,), (5,)), Box((5,), (10,)))
    >>> ExchangePlan(halves, (Box((0,), (6,)), Box((3,), (10,)))).sends(0)
    (Transfer(source=0, target=1, box=Box(start=(3,), stop=(5,))),)
    """

    writes: tuple[Box, ...]
    reads: tuple[Box, ...]

    def __post_init__(self) -> None:
        if len(self.writes) != len(self.reads) or not self.writes:
            raise GeometryError(
                f"an exchange needs a box to write and a box to read for each rank, "
                f"not {len(self.writes)} and {len(self.reads)}"
            )
        if len({len(box.start) for box in (*self.writes, *self.reads)}) != 1:
            raise GeometryError("all boxes of an exchange must have as many dimensions as each other")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.writes)

    @cached_property
    def adjoint(self) -> ExchangePlan:
        """The plan of the transposed exchange."""
        return ExchangePlan(self.reads, self.writes)

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """What a rank sends to others, by target; one box for each at most."""
        return self._by_rank[rank][0]

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """What a rank receives from others, by source; one box from each at most."""
        return self._by_rank[rank][1]

    def kept(self, rank: int) -> Box:
        """What a rank both writes and reads, and so copies by itself; may be empty."""
        return self.writes[rank].intersect(self.reads[rank])

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Everything that is sent, by source and target."""
        return tuple(transfer for sends, _ in self._by_rank for transfer in sends)

    @cached_property
    def points(self) -> int:
        """Points that are sent in all."""
        return sum(transfer.box.size for transfer in self.transfers)

    @cached_property
    def _by_rank(self) -> tuple[tuple[tuple[Transfer, ...], tuple[Transfer, ...]], ...]:
        sends: list[list[Transfer]] = [[] for _ in self.writes]
        receives: list[list[Transfer]] = [[] for _ in self.writes]
        for source, written in enumerate(self.writes):
            if not written.size:
                continue
            for target, read in enumerate(self.reads):
                if source != target and _touch(written, read):
                    transfer = Transfer(source, target, written.intersect(read))
                    sends[source].append(transfer)
                    receives[target].append(transfer)
        return tuple((tuple(out), tuple(into)) for out, into in zip(sends, receives, strict=True))


def _touch(a: Box, b: Box) -> bool:
    """Whether two boxes have a point in common, told without making a third."""
    return all(
        max(low, first) < min(high, stop)
        for low, high, first, stop in zip(a.start, a.stop, b.start, b.stop, strict=True)
    )
