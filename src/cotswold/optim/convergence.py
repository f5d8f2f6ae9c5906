"""Whether a method still makes progress that can be told from rounding.

Knows: what iterations report, the precision of vectors. Does not know: methods, vectors, when a run ends.

Progress is any of three things: a value lower than the lowest by more than rounding; a decrease that the
slopes along the steps promise, added up, where values are too coarse to show it; a gradient shorter than the
shortest. In a slow valley one of them goes on. At a minimum all of them stop: the value is rounded, steps
follow the rounding of the gradient, and its norm goes up and down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from cotswold.optim.iteration import Iteration

PROMISED = 0.01
"""The part of a value's rounding that slopes must promise: in a valley steps of a tenth of it add up to many
roundings (13 in 200 iterations on a parabola of condition 1e6 above 1, float32); at minima of softmax
regressions ten steps promise less than a thousandth."""


@dataclass(frozen=True)
class _Progress:
    """What was reached, and since when nothing more."""

    value: float = inf
    """The lowest value when there was progress last."""
    norm: float = inf
    """The shortest gradient."""
    promised: float = 0.0
    """How far the value fell since then, by the slopes of the steps."""
    stalled: int = 0
    """Iterations since then."""


class Convergence:
    """Hears iterations over the same patterns, and says when ``stall_iterations`` in a row made no progress.

    Values over other patterns cannot be compared: do not ask where an objective draws some anew.
    """

    def __init__(self, epsilon: float, stall_iterations: int) -> None:
        """``epsilon``: that of the vectors; a value is known to this part of itself. 0 iterations: never."""
        self._epsilon, self._stall_iterations = epsilon, stall_iterations
        self._progress = _Progress()

    @property
    def reached(self) -> bool:
        """Whether so many iterations in a row made no progress."""
        return 0 < self._stall_iterations <= self._progress.stalled

    def hear(self, iteration: Iteration) -> None:
        """Count an iteration."""
        before = self._progress
        promised = before.promised + iteration.promised
        norm = min(before.norm, iteration.gradient_norm)
        rounding = self._epsilon * abs(iteration.value)
        fell = before.value - iteration.value > rounding or promised > PROMISED * rounding
        if fell or norm < before.norm:
            self._progress = _Progress(min(before.value, iteration.value), norm, 0.0, 0)
        else:
            self._progress = _Progress(before.value, norm, promised, before.stalled + 1)

    def state(self) -> Mapping[str, object]:
        """What a later process needs to count on, as JSON keeps it: nothing before the first iteration."""
        return {} if self._progress.value == inf else asdict(self._progress)

    def load(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        self._progress = _Progress(**state)
