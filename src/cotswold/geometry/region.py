"""Regions: the points of a box, or all other points.

Knows: the points of two axes that belong to a region. Does not know: what is computed there.

A rank first computes the points that need no data of other ranks, while messages travel, and then the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.geometry.box import Box


@dataclass(frozen=True)
class Region:
    """The points of a box, or all points outside of it.

    Args:
        box: Box ``(y, x)``.
        is_outside: True for the points outside the box.

    >>> box = Box((1, 1), (3, 3))
    >>> Region(box).contains(2, 2), Region(box, is_outside=True).contains(2, 2)
    (True, False)
    """

    box: Box
    is_outside: bool = False

    def contains(self, y: int, x: int) -> bool:
        """Return True if the region contains the point.

        Args:
            y: Row.
            x: Column.
        """
        inside = self.box.start[0] <= y < self.box.stop[0] and self.box.start[1] <= x < self.box.stop[1]
        return inside != self.is_outside

    @property
    def complement(self) -> Region:
        """Complement of the region."""
        return Region(self.box, not self.is_outside)
