"""The search of Hager and Zhang (2005) for a step that meets the Wolfe conditions, or their approximation.

Knows: values and slopes at steps. Does not know: vectors, evaluations.

Near a minimum the decrease of φ is lost in rounding long before its slope is: of the root of the precision
against the precision, which counts in float32. The approximate conditions ask for slopes, and of φ only that
it did not rise by more than rounding:

    (2 decrease − 1) φ'(0) ≥ φ'(α) ≥ curvature · φ'(0)   and   φ(α) ≤ φ(0) + rounding · |φ(0)|
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf

from cotswold.optim.search.base import Ask, Line, Outcome, Start, Trial


class FoundError(Exception):
    """A step that meets the conditions; ends the search from within."""


class SpentError(Exception):
    """No more trials are allowed, or nothing lies between the ends."""


Look = Generator[Ask, Trial, Trial]
Ends = tuple[Trial, Trial]
Narrow = Generator[Ask, Trial, Ends]


@dataclass(frozen=True)
class ApproximateWolfe:
    """What the search demands."""

    decrease: float = 0.1
    """How much of the first slope's promise must be kept."""
    curvature: float = 0.9
    """How much of the first slope may be left."""
    rounding: float = 1e-6
    """By how much of |φ(0)| the value may rise for rounding."""
    growth: float = 5.0
    """By how much a step grows as long as the line goes down."""
    shrink: float = 0.66
    """By how much an interval must shrink in two secants; it is halved where it does not."""
    trials: int = 30
    """How many evaluations a search may take."""

    def __post_init__(self) -> None:
        if not (0 < self.decrease < 0.5 and self.decrease <= self.curvature < 1):
            raise ValueError(
                "0 < decrease < 1/2 and decrease <= curvature < 1 are needed, not "
                f"{self.decrease} and {self.curvature}"
            )
        if self.trials < 1 or not self.growth > 1 or not 0 < self.shrink < 1 or self.rounding < 0:
            raise ValueError("trials >= 1, growth > 1, 0 < shrink < 1 and rounding >= 0 are needed")

    def along(self, start: Start) -> Line:
        """Ask until the conditions hold; the lowest step met where they cannot be."""
        looking = _Looking(self, start)
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
            return Outcome(None, "no step goes down enough")


class _Looking:
    """One search: what was met, and how an interval is made and narrowed."""

    def __init__(self, demands: ApproximateWolfe, start: Start) -> None:
        self._demands, self._start = demands, start
        self._zero = Trial(0.0, start.value, start.slope)
        self._highest = start.value + demands.rounding * abs(start.value)
        self._left = demands.trials
        self.last = self.best = self._zero

    def _look(self, step: float) -> Look:
        if self._left == 0:
            raise SpentError
        self._left -= 1
        trial = yield Ask(step)
        if not trial.finite:
            return Trial(step, inf, self._start.slope)  # too far: higher than allowed
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
        """Ends a < b: at a the line goes down and φ is not too high, at b it rises."""
        low, step = self._zero, self._start.step
        while True:
            trial = yield from self._look(step)
            if trial.slope >= 0.0:
                return low, trial
            if trial.value > self._highest:
                return (yield from self._halve(self._zero, trial))
            low, step = trial, step * self._demands.growth

    def _halve(self, a: Trial, b: Trial) -> Narrow:
        """Between a, where the line goes down, and b, where φ is too high."""
        while True:
            middle = (a.step + b.step) / 2.0
            if not a.step < middle < b.step:
                raise SpentError
            trial = yield from self._look(middle)
            if trial.slope >= 0.0:
                return a, trial
            a, b = (trial, b) if trial.value <= self._highest else (a, trial)

    def update(self, a: Trial, b: Trial, step: float) -> Narrow:
        """The interval with a trial at a step inside."""
        if not a.step < step < b.step:
            if not a.step < (a.step + b.step) / 2.0 < b.step:
                raise SpentError
            return a, b
        trial = yield from self._look(step)
        if trial.slope >= 0.0:
            return a, trial
        if trial.value <= self._highest:
            return trial, b
        return (yield from self._halve(a, trial))

    def two_secants(self, a: Trial, b: Trial) -> Narrow:
        """The interval after a secant, and another through the end that it moved."""
        step = _secant(a, b)
        low, high = yield from self.update(a, b, step)
        if step == high.step:
            return (yield from self.update(low, high, _secant(b, high)))
        if step == low.step:
            return (yield from self.update(low, high, _secant(a, low)))
        return low, high


def _secant(a: Trial, b: Trial) -> float:
    """Where the slope would be zero if it changed evenly; a's own step where it does not change."""
    change = b.slope - a.slope
    return (a.step * b.slope - b.step * a.slope) / change if change != 0.0 else a.step
