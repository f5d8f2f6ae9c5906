"""Boxes of integers.

Knows: half-open boxes in any number of dimensions. Does not know: the array that a box selects from (a map, a
store, a part).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from cotswold.errors import GeometryError


@dataclass(frozen=True)
class Box:
    """A half-open box: ``start[d] <= index[d] < stop[d]`` in each dimension; empty if any extent is 0.

    Args:
        start: First index in each dimension.
        stop: End in each dimension, at least ``start``.

    Raises:
        GeometryError: Different numbers of dimensions, or a stop before its start.

    >>> Box((0, 2), (3, 5)).intersect(Box((1, 0), (9, 3)))
    Box(start=(1, 2), stop=(3, 3))
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise GeometryError(f"a box needs as many starts as stops, got {self.start} and {self.stop}")
        if any(stop < start for start, stop in zip(self.start, self.stop, strict=True)):
            raise GeometryError(f"a box must not stop before its start, got {self.start} to {self.stop}")

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """Return the box of a whole array of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent in each dimension."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of points."""
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Slices that select the box in an array."""
        return tuple(slice(start, stop) for start, stop in zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box:
        """Return the intersection with ``other``; an empty box at some corner if the boxes are disjoint."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        return Box(start, tuple(max(a, b) for a, b in zip(start, stop, strict=True)))

    def shift(self, offset: tuple[int, ...]) -> Box:
        """Return the box moved by ``offset``."""
        return Box(
            tuple(a + o for a, o in zip(self.start, offset, strict=True)),
            tuple(a + o for a, o in zip(self.stop, offset, strict=True)),
        )

    def relative_to(self, origin: Box) -> Box:
        """Return the box in coordinates relative to the start of ``origin``."""
        return self.shift(tuple(-at for at in origin.start))

    def contains(self, other: Box) -> bool:
        """Return True if every point of ``other`` is a point of this box."""
        return other.size == 0 or self.intersect(other) == other

    def points(self) -> Iterator[tuple[int, ...]]:
        """Iterate over every index of the box, the last dimension fastest."""
        return product(*(range(a, b) for a, b in zip(self.start, self.stop, strict=True)))


EMPTY_BOX = Box((0, 0), (0, 0))
"""Empty box of a plane, for a rank that owns or reads no point."""
