"""Line search of Hager and Zhang (2005): the Wolfe conditions, or approximate ones.

Knows: values and slopes at steps. Does not know: vectors, evaluations.

Near a minimum, rounding hides the decrease of φ long before it hides the slope: at the square root of the
precision instead of the precision, which matters in float32. The approximate conditions use slopes, and only
require that φ does not rise by more than rounding:

    (2 decrease − 1) φ'(0) ≥ φ'(α) ≥ curvature · φ'(0)   and   φ(α) ≤ φ(0) + rounding · |φ(0)|
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf

from cotswold.optim.search.base import Line, Outcome, Start, Trial, TrialRequest


class FoundError(Exception):
    """A step meets the conditions; ends the search from within."""


class SpentError(Exception):
    """The trials are used up, or no number lies between the ends."""


TrialGenerator = Generator[TrialRequest, Trial, Trial]
TrialPair = tuple[Trial, Trial]
Narrow = Generator[TrialRequest, Trial, TrialPair]


@dataclass(frozen=True)
class ApproximateWolfe:
    """Line search for the Wolfe conditions or their approximation by slopes.

    Args:
        decrease: fraction of the initial slope's predicted decrease that is required.
        curvature: largest remaining slope, as a fraction of the initial slope.
        rounding: tolerated rise of the value, as a fraction of |φ(0)|.
        growth: factor of the step while the line descends.
        shrink: an interval must shrink by this factor in two secants, or it is halved.
        trials: largest number of evaluations per search.

    Raises:
        ValueError: unless 0 < decrease < 1/2, decrease <= curvature < 1, trials >= 1, growth > 1, 0 < shrink
            < 1 and rounding >= 0.

    Source: Hager and Zhang 2005.
    """

    decrease: float = 0.1
    """Required fraction of the decrease that the initial slope predicts."""
    curvature: float = 0.9
    """Largest remaining slope, as a fraction of the initial slope."""
    rounding: float = 1e-6
    """Tolerated rise of the value, as a fraction of |φ(0)|."""
    growth: float = 5.0
    """Factor of the step while the line descends."""
    shrink: float = 0.66
    """Factor by which two secants must shrink an interval; otherwise it is halved."""
    trials: int = 30
    """Largest number of evaluations per search."""

    def __post_init__(self) -> None:
        if not (0 < self.decrease < 0.5 and self.decrease <= self.curvature < 1):
            raise ValueError(
                "ApproximateWolfe needs 0 < decrease < 1/2 and decrease <= curvature < 1, got "
                f"decrease={self.decrease}, curvature={self.curvature}"
            )
        if self.trials < 1 or not self.growth > 1 or not 0 < self.shrink < 1 or self.rounding < 0:
            raise ValueError(
                "ApproximateWolfe needs trials >= 1, growth > 1, 0 < shrink < 1 and rounding >= 0"
            )

    def find_step(self, start: Start) -> Line:
        """Search until the conditions hold; if they cannot, return the lowest step met.

        Args:
            start: value and slope at 0, and the first step to try.

        Returns:
            A generator that yields `TrialRequest`, receives `Trial` and returns `Outcome`.
        """
        looking = _SearchState(self, start)
        try:
            low, high = yield from looking.bracket()
            while True:
                a, b = yield from looking.two_secants(low, high)
                if b.step - a.step > self.shrink * (high.step - low.step):
                    a, b = yield from looking.update(a, b, (a.step + b.step) / 2.0)
                low, high = a, b
        except FoundError:
            return Outcome(looking.last.step)
        except SpentError:
            if looking.best.step > 0.0 and looking.best.value < start.value:
                return Outcome(looking.best.step, "the slope is not small enough, and trials ran out")
            return Outcome(None, "no step decreases the value enough")


class _SearchState:
    """State of one search: its trials, and how it makes and narrows an interval."""

    def __init__(self, demands: ApproximateWolfe, start: Start) -> None:
        self._demands, self._start = demands, start
        self._zero = Trial(0.0, start.value, start.slope)
        self._highest = start.value + demands.rounding * abs(start.value)
        self._remaining_trials = demands.trials
        self.last = self.best = self._zero

    def _try_step(self, step: float) -> TrialGenerator:
        if self._remaining_trials == 0:
            raise SpentError
        self._remaining_trials -= 1
        trial = yield TrialRequest(step)
        if not trial.finite:
            return Trial(step, inf, self._start.slope)  # too far: counts as higher than allowed
        self.last = trial
        if trial.value < self.best.value:
            self.best = trial
        d, c, slope = self._demands.decrease, self._demands.curvature, self._start.slope
        flat = abs(trial.slope) <= -c * slope
        wolfe = trial.value - self._start.value <= d * trial.step * slope
        approximate = trial.value <= self._highest and trial.slope <= (2.0 * d - 1.0) * slope
        if flat and (wolfe or approximate):
            raise FoundError
        return trial

    def bracket(self) -> Narrow:
        """Ends a < b: at a the line descends and φ is not too high, at b it rises."""
        low, step = self._zero, self._start.step
        while True:
            trial = yield from self._try_step(step)
            if trial.slope >= 0.0:
                return low, trial
            if trial.value > self._highest:
                return (yield from self._halve(self._zero, trial))
            low, step = trial, step * self._demands.growth

    def _halve(self, a: Trial, b: Trial) -> Narrow:
        """Bisect between a, where the line descends, and b, where φ is too high."""
        while True:
            middle = (a.step + b.step) / 2.0
            if not a.step < middle < b.step:
                raise SpentError
            trial = yield from self._try_step(middle)
            if trial.slope >= 0.0:
                return a, trial
            a, b = (trial, b) if trial.value <= self._highest else (a, trial)

    def update(self, a: Trial, b: Trial, step: float) -> Narrow:
        """Narrow the interval by a trial at a step inside."""
        if not a.step < step < b.step:
            if not a.step < (a.step + b.step) / 2.0 < b.step:
                raise SpentError
            return a, b
        trial = yield from self._try_step(step)
        if trial.slope >= 0.0:
            return a, trial
        if trial.value <= self._highest:
            return trial, b
        return (yield from self._halve(a, trial))

    def two_secants(self, a: Trial, b: Trial) -> Narrow:
        """Narrow the interval by a secant, and by a second one through the end that the first moved."""
        step = _secant(a, b)
        low, high = yield from self.update(a, b, step)
        if step == high.step:
            return (yield from self.update(low, high, _secant(b, high)))
        if step == low.step:
            return (yield from self.update(low, high, _secant(a, low)))
        return low, high


def _secant(a: Trial, b: Trial) -> float:
    """Zero of the linear interpolation of the slope; a's own step if the slope does not change."""
    change = b.slope - a.slope
    return (a.step * b.slope - b.step * a.slope) / change if change != 0.0 else a.step
