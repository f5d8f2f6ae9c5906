"""Nonlinear conjugate gradient: d ← −g + β d.

Knows: dots of a step, β, the first step to try. Does not know: line searches, where vectors are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

from cotswold.optim.method import AcceptedStep, IterationStats, Method, Plan
from cotswold.optim.objective import Objective
from cotswold.optim.search.base import Search
from cotswold.optim.search.hybrid import default_search
from cotswold.optim.vectors.base import Combine, Command, Dot, Vectors

DESCENT = 0.01
"""If the slope of a direction is not below −DESCENT · g·g, steepest descent replaces it (Gilbert and Nocedal
1992).
"""


HAGER_ZHANG_FLOOR = 0.01
"""η of Hager and Zhang 2005: β is at least −1 / (|d| min(η, |g_old|))."""


RESTART_FRACTION = 0.5
"""Largest g·g_old, as a fraction of g·g, before Dai and Yuan's method restarts; Powell's 0.2 is no better
here.
"""


@dataclass(frozen=True)
class StepDots:
    """Dots of a step: the new gradient g, the last direction d, y = g − g_old."""

    old_squared: float
    """g_old·g_old"""
    squared: float
    """g·g"""
    slope: float
    """g·d"""
    gradient_change: float
    """g·y"""
    curvature: float
    """d·y"""
    change_squared: float
    """y·y"""
    direction_squared: float
    """d·d"""


def polak_ribiere(c: StepDots) -> float:
    """PR+: β is never negative, so the method restarts after poor progress (Gilbert and Nocedal 1992)."""
    return max(0.0, c.gradient_change / c.old_squared)


def hestenes_stiefel(c: StepDots) -> float:
    """HS+: β is never negative, for the same reason; 0 without curvature along the line."""
    return max(0.0, c.gradient_change / c.curvature) if c.curvature > 0.0 else 0.0


def dai_yuan(c: StepDots) -> float:
    """Gives descent directions if d·y > 0, which the Wolfe conditions ensure.

    It restarts if consecutive gradients are similar.

    Without the restart the method can continue for thousands of short steps (Powell 1977): in the valley of
    Rosenbrock's function 2000 iterations were not enough; with it, 100 are.
    """
    alike = abs(c.squared - c.gradient_change) >= RESTART_FRACTION * c.squared
    return c.squared / c.curvature if c.curvature > 0.0 and not alike else 0.0


def hager_zhang(c: StepDots) -> float:
    """Gives descent by 7/8 of g·g with any line search; a lower bound makes it converge."""
    if c.curvature <= 0.0:
        return 0.0
    beta = (c.gradient_change - 2.0 * c.slope * c.change_squared / c.curvature) / c.curvature
    floor = -1.0 / (sqrt(c.direction_squared) * min(HAGER_ZHANG_FLOOR, sqrt(c.old_squared)))
    return max(beta, floor)


BetaName = Literal["polak-ribiere", "hestenes-stiefel", "dai-yuan", "hager-zhang"]
"""Formula of β: Polak-Ribière (PR+), Hestenes-Stiefel (HS+), Dai-Yuan or Hager-Zhang."""

BETAS: dict[BetaName, Callable[[StepDots], float]] = {
    "polak-ribiere": polak_ribiere,
    "hestenes-stiefel": hestenes_stiefel,
    "dai-yuan": dai_yuan,
    "hager-zhang": hager_zhang,
}


class CGMethod(Method):
    """Nonlinear conjugate gradient; its starting point is the vector ``x``.

    Args:
        vectors: the named vectors, wherever they are stored.
        objective: the function to minimise.
        beta: formula of β: "polak-ribiere", "hestenes-stiefel", "dai-yuan" or "hager-zhang".
        line_search: line search (default: `default_search` for the precision of `vectors`, with curvature
            0.4).
        cycle_iterations: iterations after which the objective draws a new sample set; None keeps the first
            set.

    Raises:
        ValueError: if `beta` is unknown or `cycle_iterations` is below 1.
    """

    kind = "cg"

    def __init__(
        self,
        vectors: Vectors,
        objective: Objective,
        *,
        beta: BetaName = "polak-ribiere",
        line_search: Search | None = None,
        cycle_iterations: int | None = None,
    ) -> None:
        if beta not in BETAS:
            raise ValueError(f"beta must be one of {', '.join(BETAS)}; got {beta!r}")
        line_search = line_search or default_search(vectors.epsilon, decrease=1e-4, curvature=0.4)
        super().__init__(vectors, objective, line_search, cycle_iterations)
        self._beta = BETAS[beta]

    def _start_dots(self) -> list[Command]:
        return []

    def _plan_at_start(self, dots: Sequence[float]) -> Plan:
        return self._steepest_descent()

    def _trial_commands(self, step: float) -> list[Command]:
        return [
            Combine("y", ((1.0, "trial_g"), (-1.0, "g"))),
            *(Dot("trial_g", "y"), Dot("d", "y"), Dot("y", "y")),
        ]

    def _plan_after(self, taken: AcceptedStep, dots: Sequence[float], counted: IterationStats) -> Plan:
        kept, curvature, change_squared = dots
        change = StepDots(
            old_squared=taken.old_squared,
            squared=taken.squared,
            slope=taken.slope,
            gradient_change=kept,
            curvature=curvature,
            change_squared=change_squared,
            direction_squared=taken.direction_squared,
        )
        beta = self._beta(change)
        slope = -taken.squared + beta * taken.slope
        if beta == 0.0:
            return replace(self._steepest_descent(), restart_reason="β is 0")
        if not slope <= -DESCENT * taken.squared:
            return replace(
                self._steepest_descent(), restart_reason="the conjugate direction does not descend enough"
            )
        squared = taken.squared - 2.0 * beta * taken.slope + beta**2 * taken.direction_squared
        return Plan(((-1.0, "g"), (beta, "d")), slope, max(squared, 0.0), False)

    def _reset_direction(self) -> None:
        self._previous = None

    def _first_step(self, plan: Plan) -> float:
        """Minimum of a parabola that falls by as much as the last step did; a step of length 1 at the start.

        At most twice the length of the last step, scaled by the slopes: a decrease that is pure rounding
        could ask for any length.
        """
        assert self._point is not None
        if self._previous is None:
            return 1.0 / sqrt(plan.squared)
        value, slope, step = self._previous
        alike = step * slope / plan.slope
        decrease = value - self._point.value
        return min(2.02 * decrease / -plan.slope, 2.0 * alike) if decrease > 0.0 else alike

    def _direction_vectors(self) -> list[str]:
        return ["d"]
