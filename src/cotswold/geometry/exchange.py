"""Exchange plans: which rank sends which part of a distributed array to which (Coates 2013, section 4.2).

Knows: the box of a global array that each rank writes, the box that it reads, their intersections. Does not
know: tensors, messages, processes. Every rank computes the same plan from integers, without communication.

At each point rank ``t`` reads the sum of the values that all ranks wrote there. If the written boxes do not
overlap, that is a copy (*fetch*, a halo exchange). With the written and read boxes swapped, the plan is the
adjoint (*overlap-sum*).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cotswold.errors import GeometryError
from cotswold.geometry.box import Box


@dataclass(frozen=True)
class Transfer:
    """A box of the global array that rank ``source`` sends to rank ``target``.

    Args:
        source: Sending rank.
        target: Receiving rank.
        box: Box of the global array.
    """

    source: int
    target: int
    box: Box


@dataclass(frozen=True)
class ExchangePlan:
    """Plan of an exchange: rank i writes ``writes[i]`` and reads ``reads[i]``; boxes may overlap.

    Args:
        writes: Box that each rank writes.
        reads: Box that each rank reads.

    Raises:
        GeometryError: Different numbers of boxes, or boxes of different dimensions.

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
                f"got {len(self.writes)} and {len(self.reads)}"
            )
        if len({len(box.start) for box in (*self.writes, *self.reads)}) != 1:
            raise GeometryError("all boxes of an exchange must have the same number of dimensions")

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.writes)

    @cached_property
    def adjoint(self) -> ExchangePlan:
        """Plan of the adjoint (transposed) exchange."""
        return ExchangePlan(self.reads, self.writes)

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers from a rank to others, ordered by target; at most one box for each."""
        return self._by_rank[rank][0]

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers from others to a rank, ordered by source; at most one box from each."""
        return self._by_rank[rank][1]

    def local_box(self, rank: int) -> Box:
        """Return the box that a rank both writes and reads, and therefore copies locally; may be empty."""
        return self.writes[rank].intersect(self.reads[rank])

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers, ordered by source and target."""
        return tuple(transfer for sends, _ in self._by_rank for transfer in sends)

    @cached_property
    def points(self) -> int:
        """Number of points sent in total."""
        return sum(transfer.box.size for transfer in self.transfers)

    @cached_property
    def _by_rank(self) -> tuple[tuple[tuple[Transfer, ...], tuple[Transfer, ...]], ...]:
        sends: list[list[Transfer]] = [[] for _ in self.writes]
        receives: list[list[Transfer]] = [[] for _ in self.writes]
        for source, written in enumerate(self.writes):
            if not written.size:
                continue
            for target, read in enumerate(self.reads):
                if source != target and _intersect(written, read):
                    transfer = Transfer(source, target, written.intersect(read))
                    sends[source].append(transfer)
                    receives[target].append(transfer)
        return tuple((tuple(out), tuple(into)) for out, into in zip(sends, receives, strict=True))


def _intersect(a: Box, b: Box) -> bool:
    """True if two boxes have a point in common, without constructing a third box."""
    return all(
        max(low, first) < min(high, stop)
        for low, high, first, stop in zip(a.start, a.stop, b.start, b.stop, strict=True)
    )
