"""L-BFGS: Newton's direction, with the curvature estimated from the last steps (Nocedal 1980).

Knows: pairs s = x − x_old, y = g − g_old by the names of their vectors, and their dots. Does not know: line
searches, where vectors are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import sqrt
from operator import mul
from typing import Any

from cotswold.optim.method import AcceptedStep, IterationStats, Method, Plan
from cotswold.optim.objective import Objective
from cotswold.optim.search.base import Search
from cotswold.optim.search.hybrid import default_search
from cotswold.optim.vectors.base import Combine, Command, Dot, Vectors

EPSILON = 2.0**-52
"""A pair is skipped if its s·y is not above this fraction of −s·g."""


@dataclass(frozen=True)
class GramMatrix:
    """Inner products of pairs, oldest first, and of the gradient."""

    sy: Sequence[Sequence[float]]
    """``sy[i][j]`` = s_i·y_j; read for i ≤ j only."""
    yy: Sequence[Sequence[float]]
    """``yy[i][j]`` = y_i·y_j."""
    sg: Sequence[float]
    yg: Sequence[float]
    gg: float


@dataclass(frozen=True)
class Direction:
    """d = Σ s[i] s_i + Σ y[i] y_i + g · gradient."""

    s: Sequence[float]
    y: Sequence[float]
    g: float
    slope: float
    """d·gradient."""


def two_loop_recursion(p: GramMatrix) -> Direction:
    """Return the L-BFGS direction −H g.

    One pair of a parabola with curvature 2 along it gives Newton's step:

    >>> two_loop_recursion(GramMatrix([[2.0]], [[4.0]], [3.0], [6.0], 9.0)).slope
    -4.5
    """
    count = len(p.sg)
    in_q = [0.0] * count  # the coefficients of the y in q; that of g is 1
    first = [0.0] * count
    for i in reversed(range(count)):
        dot = p.sg[i] + sum(map(mul, in_q[i + 1 :], p.sy[i][i + 1 :]))
        first[i] = dot / p.sy[i][i]
        in_q[i] = -first[i]
    scale = p.sy[-1][-1] / p.yy[-1][-1] if count else 1.0
    in_r = [0.0] * count  # the coefficients of the s in r
    for i in range(count):
        dot = scale * (p.yg[i] + sum(map(mul, in_q, p.yy[i])))
        dot += sum(in_r[j] * p.sy[j][i] for j in range(i))
        in_r[i] = first[i] - dot / p.sy[i][i]
    s, y = [-each for each in in_r], [-scale * each for each in in_q]
    slope = sum(map(mul, s, p.sg)) + sum(map(mul, y, p.yg))
    return Direction(s, y, -scale, slope - scale * p.gg)


class LBFGSMethod(Method):
    """L-BFGS; its starting point is the vector ``x``.

    The pairs (s, y) are the vectors ``s0``, ``y0``, ``s1`` and so on.

    Args:
        vectors: the named vectors, wherever they are stored.
        objective: the function to minimise.
        history_size: number of pairs to keep.
        line_search: line search (default: `default_search` for the precision of `vectors`, with curvature
            0.9).
        cycle_iterations: iterations after which the objective draws a new sample set; None keeps the first
            set.

    Raises:
        ValueError: if `history_size` or `cycle_iterations` is below 1.
    """

    kind = "lbfgs"

    def __init__(
        self,
        vectors: Vectors,
        objective: Objective,
        *,
        history_size: int = 10,
        line_search: Search | None = None,
        cycle_iterations: int | None = None,
    ) -> None:
        if history_size < 1:
            raise ValueError(f"history_size must be at least 1, got {history_size}")
        line_search = line_search or default_search(vectors.epsilon, decrease=1e-3, curvature=0.9)
        super().__init__(vectors, objective, line_search, cycle_iterations)
        self._memory = history_size
        self._slots: list[int] = []  # of the pairs, oldest first
        self._sy: list[list[float]] = []  # s_i·y_j for i ≤ j
        self._yy: list[list[float]] = []

    @property
    def _free_slot(self) -> int:
        """Slot for the next pair; the method has one slot more than pairs."""
        return next(slot for slot in count() if slot not in self._slots)

    def _history_dots(self, name: str) -> list[Command]:
        dots: list[Command] = []
        for slot in self._slots:
            dots += [Dot(f"s{slot}", name), Dot(f"y{slot}", name)]
        return dots

    def _start_dots(self) -> list[Command]:
        return self._history_dots("g")

    def _plan_at_start(self, dots: Sequence[float]) -> Plan:
        return self._plan_from(dots[::2], dots[1::2])

    def _trial_commands(self, step: float) -> list[Command]:
        y = f"y{self._free_slot}"
        return [
            Combine(y, ((1.0, "trial_g"), (-1.0, "g"))),
            *(Dot(y, "trial_g"), Dot(y, "d"), Dot(y, y)),
            *self._history_dots("trial_g"),
            *self._history_dots(y),
        ]

    def _plan_after(self, taken: AcceptedStep, dots: Sequence[float], counted: IterationStats) -> Plan:
        yg, yd, yy = dots[:3]
        pairs = 2 * len(self._slots)
        old_g, old_y = dots[3 : 3 + pairs], dots[3 + pairs :]
        sg, ygs = [*old_g[::2]], [*old_g[1::2]]
        if yd > EPSILON * -taken.start_slope and yy > 0.0:
            slot = self._free_slot
            self._pending.append(Combine(f"s{slot}", ((taken.step, "d"),)))
            self._append_pair(slot, [*old_y[::2], taken.step * yd], [*old_y[1::2], yy])
            sg, ygs = [*sg, taken.step * taken.slope][-self._memory :], [*ygs, yg][-self._memory :]
        else:
            counted.skipped = f"no pair: the curvature along the step is {yd / taken.direction_squared:.3g}"
        return self._plan_from(sg, ygs)

    def _append_pair(self, slot: int, sy: list[float], yy: list[float]) -> None:
        """Append a pair with its products with all pairs, itself last; drop the oldest of more than
        ``history_size``.
        """
        for row, product in zip(self._sy, sy, strict=False):
            row.append(product)
        for row, product in zip(self._yy, yy, strict=False):
            row.append(product)
        self._slots.append(slot)
        self._sy.append([0.0] * (len(sy) - 1) + [sy[-1]])
        self._yy.append(yy)
        if len(self._slots) > self._memory:
            self._slots = self._slots[1:]
            self._sy = [row[1:] for row in self._sy[1:]]
            self._yy = [row[1:] for row in self._yy[1:]]

    def _plan_from(self, sg: Sequence[float], yg: Sequence[float]) -> Plan:
        assert self._point is not None
        if not self._slots:
            return self._steepest_descent()
        found = two_loop_recursion(GramMatrix(self._sy, self._yy, sg, yg, self._point.squared))
        terms = [(found.g, "g")]
        for slot, s, y in zip(self._slots, found.s, found.y, strict=True):
            terms += [(s, f"s{slot}"), (y, f"y{slot}")]
        return Plan(tuple(terms), found.slope, 0.0, False)

    def _reset_direction(self) -> None:
        self._slots, self._sy, self._yy = [], [], []

    def _first_step(self, plan: Plan) -> float:
        return 1.0 / sqrt(plan.squared) if plan.steepest else 1.0

    def _direction_state(self) -> dict[str, object]:
        return {
            "slots": [*self._slots],
            "sy": [[*row] for row in self._sy],
            "yy": [[*row] for row in self._yy],
        }

    def _direction_vectors(self) -> list[str]:
        return [f"{kind}{slot}" for slot in self._slots for kind in "sy"]

    def load(self, values: Mapping[str, Any]) -> None:
        """Resume from a saved state, with the newest pairs that fit into ``history_size``.

        Args:
            values: `MethodState.values` of an `LBFGSMethod`.

        Raises:
            ValueError: if the state belongs to another kind of method.
        """
        super().load(values)
        recent = slice(max(0, len(values["slots"]) - self._memory), None)
        self._slots = [int(slot) for slot in values["slots"][recent]]
        self._sy = [[float(each) for each in row[recent]] for row in values["sy"][recent]]
        self._yy = [[float(each) for each in row[recent]] for row in values["yy"][recent]]
