"""How a plane is cut over a grid of ranks.

Knows: cuts of two axes, which part a rank has. Does not know: what lies on the plane, messages.

Ranks are numbered row by row: rank ``iy * columns + ix`` stands in row ``iy`` and column ``ix`` of the grid.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cotswold.errors import GeometryError
from cotswold.geometry.box import Box


@dataclass(frozen=True)
class Grid:
    """Ranks down and across.

    >>> Grid.parse("3x2").size, Grid(3, 2).place(3)
    (6, (1, 1))
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise GeometryError(f"a grid needs at least one rank each way, not {self.rows}x{self.columns}")

    @classmethod
    def parse(cls, text: str) -> Grid:
        """``"2x3"`` as two rows of three ranks; raises GeometryError for anything else."""
        match = re.fullmatch(r"\s*(\d{1,6})\s*[x×]\s*(\d{1,6})\s*", text)
        if match is None:
            raise GeometryError(f"a grid is rows x columns of ranks, such as 2x2, not {text[:60]!r}")
        return cls(int(match[1]), int(match[2]))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.rows * self.columns

    def place(self, rank: int) -> tuple[int, int]:
        """The row and column of a rank."""
        return divmod(rank, self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def even_cuts(extent: int, parts: int) -> tuple[int, ...]:
    """Where each of ``parts`` begins, and the end: ``ceil(extent / parts)`` each, later ones fewer or none.

    The split of ``torch.chunk`` and of DTensor.

    >>> even_cuts(46, 4), even_cuts(2, 4)
    ((0, 12, 24, 36, 46), (0, 1, 2, 2, 2))
    """
    share = -(-extent // parts)
    return tuple(min(share * part, extent) for part in range(parts + 1))


@dataclass(frozen=True)
class Partition:
    """A plane cut over a grid: rank (iy, ix) has rows ``y[iy] .. y[iy + 1]``, columns ``x[ix] .. x[ix + 1]``.

    >>> Partition.even((5, 4), Grid(2, 2)).box(3)
    Box(start=(3, 2), stop=(5, 4))
    """

    y: tuple[int, ...]
    x: tuple[int, ...]

    def __post_init__(self) -> None:
        for cuts in (self.y, self.x):
            if len(cuts) < 2 or cuts[0] != 0 or any(b < a for a, b in pairwise(cuts)):
                raise GeometryError(f"cuts of an axis rise from 0 to its end, not {cuts}")

    @classmethod
    def even(cls, shape: tuple[int, int], grid: Grid) -> Partition:
        """A plane (height, width) in even parts."""
        return cls(even_cuts(shape[0], grid.rows), even_cuts(shape[1], grid.columns))

    @property
    def grid(self) -> Grid:
        """The grid over which the plane is cut."""
        return Grid(len(self.y) - 1, len(self.x) - 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the plane."""
        return self.y[-1], self.x[-1]

    def box(self, rank: int) -> Box:
        """The part of a rank."""
        iy, ix = self.grid.place(rank)
        return Box((self.y[iy], self.x[ix]), (self.y[iy + 1], self.x[ix + 1]))

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The parts of all ranks."""
        return tuple(self.box(rank) for rank in range(self.grid.size))

    def times(self, rows: int, columns: int) -> Partition:
        """The same cuts of a plane on which every point has become ``rows x columns`` points."""
        return Partition(tuple(rows * at for at in self.y), tuple(columns * at for at in self.x))


def middle_cuts(windows: Sequence[tuple[int, int]], extent: int) -> tuple[int, ...]:
    """Cuts of an axis such that each part lies amid what its rank reads, ``windows`` (first, stop) by rank.

    Between two ranks that read the cut is in the middle of what both read; a gap belongs to the rank before
    it. Ranks that read nothing (an empty window) have nothing. The whole axis has owners, if anybody reads.

    >>> middle_cuts([(0, 20), (12, 32), (32, 32)], 40)
    (0, 16, 40, 40)
    """
    reading = [index for index, (first, stop) in enumerate(windows) if stop > first]
    cuts = [0] * (len(windows) + 1)
    for index in range(1, len(windows) + 1):
        before = [one for one in reading if one < index]
        after = [one for one in reading if one >= index]
        if not after:
            cuts[index] = extent
        elif before:
            end, start = windows[before[-1]][1], windows[after[0]][0]
            cuts[index] = max(min((end + start) // 2, end) if start < end else start, cuts[index - 1])
    return tuple(cuts)


def following_cuts(
    cuts: Sequence[int], outputs: int, reads: Callable[[int], tuple[int, int]]
) -> tuple[int, ...]:
    """Cuts of a layer's output axis that follow those of its input axis.

    Each output goes to the rank that has the middle of what the output reads, ``reads(output)`` (first,
    stop), which may reach into padding.

    >>> following_cuts((0, 10, 20), 16, lambda output: (output, output + 5))
    (0, 8, 16)
    """
    extent = cuts[-1]

    def middle(output: int) -> int:
        return sum(reads(output))

    inner = (
        0 if at <= 0 else outputs if at >= extent else bisect_left(range(outputs), 2 * at, key=middle)
        for at in cuts[:-1]
    )
    return (*inner, outputs)
