"""Nonlinear conjugate gradient: d ← −g + β d.

Knows: dots of a step, β, where to look first. Does not know: how a line is searched, where vectors are.
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
"""A direction whose slope is not below −DESCENT · g·g is replaced by that of steepest descent (Gilbert and
Nocedal 1992)."""


class CGMethod(Method):
    """Conjugate gradient; its starting point is the vector ``x``."""

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
        """``search``: `suited`, with a curvature of 0.4, where None; ``cycle`` as in `Method`."""
        if beta not in BETAS:
            raise ValueError(f"unknown beta {beta!r}; known are {', '.join(BETAS)}")
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
        """Where a parabola is lowest that falls by as much as the last step did; of length 1 at the start.

        Never more than twice as far as the last step, by the slopes: decreases of rounding promise anything.
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
