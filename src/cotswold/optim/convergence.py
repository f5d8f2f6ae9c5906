"""Detect that a method makes no more progress beyond rounding.

Knows: results of iterations, the precision of vectors. Does not know: methods, vectors, when a run ends.

Progress is any of three things: a value lower than the lowest so far by more than rounding; a sum of
decreases predicted by the slopes along the steps, for values too coarse to show the decrease; a gradient norm
below the smallest so far. In a slow valley, one of them continues. At a minimum all of them stop: the value
is rounded, steps follow the rounding of the gradient, and its norm fluctuates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from cotswold.optim.iteration import Iteration

MIN_PREDICTED_FRACTION = 0.01
"""Fraction of a value's rounding that counts as progress if slopes predict it. In a valley, steps of a tenth
of the rounding add up to many roundings (13 in 200 iterations on a parabola of condition 1e6 above 1,
float32). At minima of softmax regressions, ten steps predict less than a thousandth.
"""


@dataclass(frozen=True)
class _Progress:
    """Best values so far, and the iterations without progress."""

    value: float = inf
    """Lowest value at the last progress."""
    norm: float = inf
    """Smallest gradient norm so far."""
    predicted_decrease: float = 0.0
    """Decrease of the value since then, predicted by the slopes of the steps."""
    stalled: int = 0
    """Iterations since then."""


class Convergence:
    """Counts iterations without progress over one sample set.

    Values over different samples cannot be compared: do not use it if the objective draws new sample sets.

    Args:
        epsilon: relative precision of the vectors (`Vectors.epsilon`); a value is known to this fraction.
        convergence_patience: iterations in a row without progress until `is_converged`; 0 turns it off.
    """

    def __init__(self, epsilon: float, convergence_patience: int) -> None:
        self._epsilon, self._convergence_patience = epsilon, convergence_patience
        self._progress = _Progress()

    @property
    def is_converged(self) -> bool:
        """True if ``convergence_patience`` iterations in a row made no progress."""
        return 0 < self._convergence_patience <= self._progress.stalled

    def update(self, iteration: Iteration) -> None:
        """Count an iteration.

        Args:
            iteration: the result of `Method.step`.
        """
        before = self._progress
        promised = before.predicted_decrease + iteration.predicted_decrease
        norm = min(before.norm, iteration.gradient_norm)
        rounding = self._epsilon * abs(iteration.value)
        fell = before.value - iteration.value > rounding or promised > MIN_PREDICTED_FRACTION * rounding
        if fell or norm < before.norm:
            self._progress = _Progress(min(before.value, iteration.value), norm, 0.0, 0)
        else:
            self._progress = _Progress(before.value, norm, promised, before.stalled + 1)

    def state(self) -> Mapping[str, object]:
        """Return the counters as JSON values; empty before the first iteration."""
        return {} if self._progress.value == inf else asdict(self._progress)

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: the result of `state`.
        """
        self._progress = _Progress(**state)


class LossDecrease:
    """The decrease of the value in the last iteration, relative to the value or to 1, whichever is larger.

    The decrease that the slopes predict counts too, because values of float32 are coarse.

    Args:
        tolerance: a decrease of at most this is small; 0 turns the rule off.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._value = self._decrease = inf

    @property
    def is_small(self) -> bool:
        """True if the last iteration decreased the value by at most the tolerance."""
        return self._decrease <= self._tolerance and self._tolerance > 0

    def update(self, iteration: Iteration) -> None:
        """Count an iteration.

        Args:
            iteration: the result of `Method.step`.
        """
        decrease = max(self._value - iteration.value, iteration.predicted_decrease)
        self._value, self._decrease = iteration.value, decrease / max(1.0, abs(iteration.value))

    def state(self) -> Mapping[str, object]:
        """Return the last value and decrease as JSON values, those that exist."""
        found = {"value": self._value, "decrease": self._decrease}
        return {name: each for name, each in found.items() if each != inf}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state.

        Args:
            state: the result of `state`.
        """
        self._value, self._decrease = state.get("value", inf), state.get("decrease", inf)
