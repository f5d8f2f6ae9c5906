"""Nonlinear conjugate gradient: d ← −g + β d.

Knows: dots of a step, β, the first step to try. Does not know: line searches, where vectors are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from cotswold.optim.directions import BETAS, BetaName, Change
from cotswold.optim.method import Count, Method, Plan, Taken
from cotswold.optim.objective import Objective
from cotswold.optim.search.base import Search
from cotswold.optim.search.hybrid import suited
from cotswold.optim.vectors.base import Combine, Command, Dot, Vectors

DESCENT = 0.01
"""If the slope of a direction is not below −DESCENT · g·g, steepest descent replaces it (Gilbert and Nocedal
1992).
"""


class CGMethod(Method):
    """Nonlinear conjugate gradient; its starting point is the vector ``x``.

    Args:
        vectors: the named vectors, wherever they are stored.
        objective: the function to minimise.
        beta: formula of β: "polak-ribiere", "hestenes-stiefel", "dai-yuan" or "hager-zhang".
        search: line search (default: `suited` to the precision of `vectors`, with curvature 0.4).
        cycle: iterations after which the objective draws a new sample set; None keeps the first set.

    Raises:
        ValueError: if `beta` is unknown or `cycle` is below 1.
    """

    kind = "cg"

    def __init__(
        self,
        vectors: Vectors,
        objective: Objective,
        *,
        beta: BetaName = "polak-ribiere",
        search: Search | None = None,
        cycle: int | None = None,
    ) -> None:
        if beta not in BETAS:
            raise ValueError(f"beta must be one of {', '.join(BETAS)}; got {beta!r}")
        search = search or suited(vectors.epsilon, decrease=1e-4, curvature=0.4)
        super().__init__(vectors, objective, search, cycle)
        self._beta = BETAS[beta]

    def _at_start(self) -> list[Command]:
        return []

    def _plan_at_start(self, dots: Sequence[float]) -> Plan:
        return self._steepest()

    def _at_trial(self, step: float) -> list[Command]:
        return [
            Combine("y", ((1.0, "trial_g"), (-1.0, "g"))),
            *(Dot("trial_g", "y"), Dot("d", "y"), Dot("y", "y")),
        ]

    def _plan_after(self, taken: Taken, dots: Sequence[float], counted: Count) -> Plan:
        kept, curvature, change_squared = dots
        change = Change(
            old_squared=taken.old_squared,
            squared=taken.squared,
            slope=taken.slope,
            kept=kept,
            curvature=curvature,
            change_squared=change_squared,
            direction_squared=taken.direction_squared,
        )
        beta = self._beta(change)
        slope = -taken.squared + beta * taken.slope
        if beta == 0.0:
            return replace(self._steepest(), why="β is 0")
        if not slope <= -DESCENT * taken.squared:
            return replace(self._steepest(), why="the conjugate direction does not descend enough")
        squared = taken.squared - 2.0 * beta * taken.slope + beta**2 * taken.direction_squared
        return Plan(((-1.0, "g"), (beta, "d")), slope, max(squared, 0.0), False)

    def _forget(self) -> None:
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

    def _own_vectors(self) -> list[str]:
        return ["d"]
