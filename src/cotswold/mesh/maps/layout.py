"""Layouts of distributed arrays: which dimensions contain the rows and columns of a plane cut over ranks.

Knows: factors of dimensions, cuts, reshapes. Does not know: tensors, messages.

A dimension is a product of factors, the outermost first. A factor is an `Axis` or `Tokens`. A rank has all
of an axis, or the range of its row or column of the grid. Every layout has the rows and the columns of one
plane, each once, or `Tokens`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from cotswold.geometry import Grid, Partition

ROWS, COLUMNS = 0, 1
"""Sides of an axis that is cut over the rows or the columns of the grid."""


@dataclass(frozen=True)
class Axis:
    """A factor of a dimension; without a ``side`` every rank has all of it."""

    extent: int
    side: int | None = None
    cuts: tuple[int, ...] = ()

    @property
    def is_cut(self) -> bool:
        """True if ranks have different parts."""
        return self.side is not None

    def part(self, grid: Grid, rank: int) -> range:
        """Return the indices that a rank has."""
        if self.side is None:
            return range(self.extent)
        at = grid.position(rank)[self.side]
        return range(self.cuts[at], self.cuts[at + 1])

    def split(self, outer: int) -> tuple[Axis, Axis]:
        """Split the axis into two factors; cuts move to the nearest multiple of the inner extent."""
        inner = self.extent // outer
        cuts = tuple((2 * cut + inner) // (2 * inner) for cut in self.cuts)
        return Axis(outer, self.side, cuts), Axis(inner)


@dataclass(frozen=True)
class Tokens:
    """All pixels of a plane, row by row, and tokens before and after them that only the first rank has."""

    before: int
    plane: Partition
    after: int

    is_cut = True

    @property
    def pixels(self) -> int:
        """Number of pixels of the plane."""
        return self.plane.shape[0] * self.plane.shape[1]

    @property
    def extent(self) -> int:
        """Number of tokens."""
        return self.before + self.pixels + self.after

    def part(self, grid: Grid, rank: int) -> list[int]:
        """Return the indices that a rank has, rising."""
        (top, left), (bottom, right) = self.plane.box(rank).start, self.plane.box(rank).stop
        width = self.plane.shape[1]
        pixels = [self.before + y * width + x for y in range(top, bottom) for x in range(left, right)]
        if rank:
            return pixels
        return [*range(self.before), *pixels, *range(self.extent - self.after, self.extent)]


Factor = Axis | Tokens
Dim = tuple[Factor, ...]


def plain(extent: int) -> Dim:
    """Return a dimension of which every rank has all."""
    return () if extent == 1 else (Axis(extent),)


def is_cut(dim: Dim) -> bool:
    """True if ranks have different parts of a dimension."""
    return any(factor.is_cut for factor in dim)


def extent_of(dim: Dim) -> int:
    """Return the extent of a dimension."""
    return prod(factor.extent for factor in dim)


def merged(factors: Iterable[Factor]) -> Dim:
    """Return the dimension of some factors; an axis takes in the whole axes behind it."""
    out: list[Factor] = []
    for factor in factors:
        if factor.is_cut:
            out.append(factor)
        elif factor.extent != 1:
            last = out[-1] if out else None
            if isinstance(last, Axis):
                times = factor.extent
                out[-1] = Axis(last.extent * times, last.side, tuple(cut * times for cut in last.cuts))
            else:
                out.append(factor)
    return tuple(out)


@dataclass(frozen=True)
class Layout:
    """Dimensions of an array of which each rank of a grid holds a part."""

    dims: tuple[Dim, ...]
    grid: Grid

    @classmethod
    def of_map(cls, images: int, channels: int, plane: Partition) -> Layout:
        """Return the layout of a map ``(image, channel, y, x)``."""
        (height, width), rows, columns = plane.shape, plane.y, plane.x
        cut = (Axis(height, ROWS, rows),), (Axis(width, COLUMNS, columns),)
        return cls((plain(images), plain(channels), *cut), plane.grid)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Extents of the whole."""
        return tuple(map(extent_of, self.dims))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Extents of a rank's part."""
        return tuple(prod(len(one.part(self.grid, rank)) for one in dim) for dim in self.dims)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Factors of all dimensions."""
        return tuple(factor for dim in self.dims for factor in dim)

    @cached_property
    def cut_dims(self) -> frozenset[int]:
        """Dimensions of which ranks have different parts."""
        return frozenset(at for at, dim in enumerate(self.dims) if is_cut(dim))

    @cached_property
    def plane(self) -> Partition | None:
        """The plane that is cut over ranks, in units of the cut axes; None for `Tokens`."""
        found: dict[int | None, tuple[int, ...]] = {
            one.side: one.cuts for one in self.factors if isinstance(one, Axis)
        }
        return Partition(found[ROWS], found[COLUMNS]) if ROWS in found and COLUMNS in found else None

    @property
    def is_map(self) -> bool:
        """True for a layout ``(image, channel, y, x)``."""
        sides = [[getattr(one, "side", 2) for one in dim] for dim in self.dims]
        return len(sides) == 4 and sides[2:] == [[ROWS], [COLUMNS]] and not {0, 1} & self.cut_dims

    def with_dims(self, dims: Iterable[Dim]) -> Layout:
        """Return a layout with other dimensions."""
        return Layout(tuple(dims), self.grid)

    def with_dim(self, at: int, dim: Dim) -> Layout:
        """Return a layout with another dimension in place of one."""
        return self.with_dims(dim if at == one else old for one, old in enumerate(self.dims))

    def reduced(self, dims: Iterable[int], keepdim: bool) -> Layout:
        """Return the layout without some dimensions, or with extent 1 there."""
        gone = set(dims)
        pairs = [(at in gone, dim) for at, dim in enumerate(self.dims)]
        return self.with_dims(() if is_gone else dim for is_gone, dim in pairs if keepdim or not is_gone)

    def with_plane(self, plane: Partition) -> Layout:
        """Return the layout with other cuts of its plane."""
        cuts = (plane.y, plane.x)

        def moved(factor: Factor) -> Factor:
            if isinstance(factor, Axis) and factor.side is not None:
                return replace(factor, cuts=cuts[factor.side])
            return factor

        return self.with_dims(tuple(map(moved, dim)) for dim in self.dims)

    def reshaped(self, shape: Sequence[int]) -> tuple[Layout, Layout] | None:
        """Return this layout with cuts that a reshape can keep, and the layout of ``shape``.

        None if dimensions of ``shape`` are not products of factors.
        """
        found = _regrouped(self.factors, shape)
        if found is None:
            return None
        out = self.with_dims(found)
        mine, plane = self.plane, out.plane
        if mine is None or plane is None:
            return self, out
        sides = zip((plane.y, plane.x), plane.shape, mine.shape, strict=True)
        aligned = [tuple(cut * own // extent for cut in cuts) for cuts, extent, own in sides]
        return self.with_plane(Partition(*aligned)), out


def _regrouped(factors: Sequence[Factor], shape: Sequence[int]) -> list[Dim] | None:
    rest, dims = list(factors), []
    if 0 in shape:
        return None
    for at, extent in enumerate(shape):
        dim: list[Factor] = []
        while extent > 1:
            if not rest:
                return None
            factor = rest.pop(0)
            if extent % factor.extent == 0:
                dim.append(factor)
                extent //= factor.extent
            elif isinstance(factor, Axis) and factor.extent % extent == 0:
                outer, inner = factor.split(extent)
                dim.append(outer)
                rest.insert(0, inner)
                extent = 1
            else:
                return None
        if not dim and rest and rest[0].extent == 1:
            dim.append(rest.pop(0))
        elif 1 not in shape[at + 1 : at + 2] and not _precede_pixels(rest):
            while rest and rest[0].extent == 1:
                dim.append(rest.pop(0))
        dims.append(dim)
    if rest and (not dims or any(one.extent != 1 for one in rest)):
        return None
    if rest:
        dims[-1].extend(rest)
    return [merged(dim) for dim in dims]


def _precede_pixels(factors: Sequence[Factor]) -> bool:
    """True if the first factor of more than 1 is divided, so that single rows before it belong to it."""
    return next((one.is_cut for one in factors if one.extent != 1), False)
