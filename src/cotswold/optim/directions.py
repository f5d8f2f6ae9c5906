"""β of conjugate gradient: the factor of the last direction in d ← −g + β d.

Knows: dots. Does not know: vectors, line searches.

With y = g − g_old, and d the direction of the last step:

    Polak-Ribière   g·y / g_old·g_old
    Hestenes-Stiefel g·y / d·y
    Dai-Yuan        g·g / d·y
    Hager-Zhang     (y − 2 d (y·y)/(d·y))·g / d·y     (Hager and Zhang 2005, equation 1.3)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

HAGER_ZHANG_FLOOR = 0.01
"""η of Hager and Zhang 2005: β is at least −1 / (|d| min(η, |g_old|))."""


ALIKE = 0.5
"""Largest g·g_old, as a fraction of g·g, before Dai and Yuan's method restarts; Powell's 0.2 is no better
here.
"""


@dataclass(frozen=True)
class Change:
    """Dots of a step: the new gradient g, the last direction d, y = g − g_old."""

    old_squared: float
    """g_old·g_old"""
    squared: float
    """g·g"""
    slope: float
    """g·d"""
    kept: float
    """g·y"""
    curvature: float
    """d·y"""
    change_squared: float
    """y·y"""
    direction_squared: float
    """d·d"""


def polak_ribiere(c: Change) -> float:
    """PR+: β is never negative, so the method restarts after poor progress (Gilbert and Nocedal 1992)."""
    return max(0.0, c.kept / c.old_squared)


def hestenes_stiefel(c: Change) -> float:
    """HS+: β is never negative, for the same reason; 0 without curvature along the line."""
    return max(0.0, c.kept / c.curvature) if c.curvature > 0.0 else 0.0


def dai_yuan(c: Change) -> float:
    """Gives descent directions if d·y > 0, which the Wolfe conditions ensure.

    Restarts if gradients stay alike.

    Without the restart the method can continue for thousands of short steps (Powell 1977): in the valley of
    Rosenbrock's function 2000 iterations were not enough; with it, 100 are.
    """
    alike = abs(c.squared - c.kept) >= ALIKE * c.squared
    return c.squared / c.curvature if c.curvature > 0.0 and not alike else 0.0


def hager_zhang(c: Change) -> float:
    """Gives descent by 7/8 of g·g with any line search; a lower bound makes it converge."""
    if c.curvature <= 0.0:
        return 0.0
    beta = (c.kept - 2.0 * c.slope * c.change_squared / c.curvature) / c.curvature
    floor = -1.0 / (sqrt(c.direction_squared) * min(HAGER_ZHANG_FLOOR, sqrt(c.old_squared)))
    return max(beta, floor)


BetaName = Literal["polak-ribiere", "hestenes-stiefel", "dai-yuan", "hager-zhang"]
"""Formula of β: Polak-Ribière (PR+), Hestenes-Stiefel (HS+), Dai-Yuan or Hager-Zhang."""

BETAS: dict[BetaName, Callable[[Change], float]] = {
    "polak-ribiere": polak_ribiere,
    "hestenes-stiefel": hestenes_stiefel,
    "dai-yuan": dai_yuan,
    "hager-zhang": hager_zhang,
}
