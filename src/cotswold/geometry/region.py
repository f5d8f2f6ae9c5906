"""Regions: the points of a box, or all other points.

Knows: which stretches of two axes are meant. Does not know: what is computed there.

A rank computes first what needs nothing from others, while their messages travel, and then the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.geometry.box import Box


@dataclass(frozen=True)
class Region:
    """The points of ``box`` (y, x), or with ``outside`` all points but these.

    >>> Region(Box((1, 1), (3, 3))).holds(2, 2), Region(Box((1, 1), (3, 3)), outside=True).holds(2, 2)
    (True, False)
    """

    box: Box
    outside: bool = False

    def holds(self, y: int, x: int) -> bool:
        """Whether a point is meant."""
        inside = self.box.start[0] <= y < self.box.stop[0] and self.box.start[1] <= x < self.box.stop[1]
        return inside != self.outside

    @property
    def rest(self) -> Region:
        """All points that are not meant."""
        return Region(self.box, not self.outside)
