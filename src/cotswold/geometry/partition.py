"""Partition of a plane over a grid of ranks.

Knows: cuts of two axes, the part of each rank. Does not know: the contents of the plane, messages.

Ranks are numbered row by row: rank ``iy * columns + ix`` is in row ``iy`` and column ``ix`` of the grid.
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
    """A grid of ranks.

    Args:
        rows: Ranks down, at least 1.
        columns: Ranks across, at least 1.

    Raises:
        GeometryError: An extent below 1.

    >>> Grid.parse("3x2").size, Grid(3, 2).position(3)
    (6, (1, 1))
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise GeometryError(f"a grid needs at least 1 row and 1 column, got {self.rows}x{self.columns}")

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Return the grid of a text such as ``"2x3"``, two rows of three ranks.

        Args:
            text: Rows and columns, separated by ``x``.

        Raises:
            GeometryError: Another text.
        """
        match = re.fullmatch(r"\s*(\d{1,6})\s*[x×]\s*(\d{1,6})\s*", text)
        if match is None:
            raise GeometryError(f"a grid must be rows x columns of ranks, such as 2x2, got {text[:60]!r}")
        return cls(int(match[1]), int(match[2]))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.rows * self.columns

    def position(self, rank: int) -> tuple[int, int]:
        """Return the row and column of a rank."""
        return divmod(rank, self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def chunk_bounds(extent: int, parts: int) -> tuple[int, ...]:
    """Return the boundaries of ``parts`` chunks: ``ceil(extent / parts)`` each, later ones smaller or empty.

    The split of ``torch.chunk`` and of DTensor.

    >>> chunk_bounds(46, 4), chunk_bounds(2, 4)
    ((0, 12, 24, 36, 46), (0, 1, 2, 2, 2))
    """
    share = -(-extent // parts)
    return tuple(min(share * part, extent) for part in range(parts + 1))


@dataclass(frozen=True)
class Partition:
    """A plane cut over a grid of ranks.

    Rank (iy, ix) has rows ``y[iy] .. y[iy + 1]`` and columns ``x[ix] .. x[ix + 1]``.

    Args:
        y: Cuts of the rows, rising from 0 to the height.
        x: Cuts of the columns, rising from 0 to the width.

    Raises:
        GeometryError: Cuts that do not start at 0 or do not rise.

    >>> Partition.even((5, 4), Grid(2, 2)).box(3)
    Box(start=(3, 2), stop=(5, 4))
    """

    y: tuple[int, ...]
    x: tuple[int, ...]

    def __post_init__(self) -> None:
        for cuts in (self.y, self.x):
            if len(cuts) < 2 or cuts[0] != 0 or any(b < a for a, b in pairwise(cuts)):
                raise GeometryError(f"cuts of an axis must rise from 0 to its end, got {cuts}")

    @classmethod
    def even(cls, shape: tuple[int, int], grid: Grid) -> Partition:
        """Return the partition of a plane into even parts, as DTensor splits it.

        Args:
            shape: Height and width of the plane.
            grid: Grid of ranks.
        """
        return cls(chunk_bounds(shape[0], grid.rows), chunk_bounds(shape[1], grid.columns))

    @property
    def grid(self) -> Grid:
        """Grid of ranks of the partition."""
        return Grid(len(self.y) - 1, len(self.x) - 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the plane."""
        return self.y[-1], self.x[-1]

    def box(self, rank: int) -> Box:
        """Return the part of a rank, as a box ``(y, x)``."""
        iy, ix = self.grid.position(rank)
        return Box((self.y[iy], self.x[ix]), (self.y[iy + 1], self.x[ix + 1]))

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """Parts of all ranks."""
        return tuple(self.box(rank) for rank in range(self.grid.size))

    def times(self, rows: int, columns: int) -> Partition:
        """Return the same cuts on a plane that has ``rows x columns`` points in place of every point.

        Args:
            rows: Factor of the height.
            columns: Factor of the width.
        """
        return Partition(tuple(rows * at for at in self.y), tuple(columns * at for at in self.x))


def midpoint_bounds(windows: Sequence[tuple[int, int]], extent: int) -> tuple[int, ...]:
    """Return cuts of an axis such that each part is in the middle of the window that its rank reads.

    ``windows`` are (first, stop) by rank. Between two windows the cut is in the middle of their overlap; a
    gap belongs to the rank before it. A rank with an empty window gets an empty part. The parts cover the
    whole axis unless all windows are empty.

    >>> midpoint_bounds([(0, 20), (12, 32), (32, 32)], 40)
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


def output_bounds(
    cuts: Sequence[int], outputs: int, reads: Callable[[int], tuple[int, int]]
) -> tuple[int, ...]:
    """Return cuts of a layer's output axis that follow those of its input axis.

    Each output goes to the rank that owns the middle of the range it reads, ``reads(output)`` (first, stop),
    which may include padding.

    >>> output_bounds((0, 10, 20), 16, lambda output: (output, output + 5))
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
