"""The line search of Bunyip: steps that double or halve, the sign of the slope on part of the patterns.

Knows: slopes and values at steps. Does not know: vectors, evaluations, which patterns a part has.

Aberdeen, Baxter and Edwards 2000, section 4.2: an exponential scheme of steps brackets the minimum by the
sign of gradient · direction, "and the sign can be reliably estimated with far fewer training patterns than is
required to estimate the error"; a parabola through both ends gives the step. All patterns are evaluated once,
at that step, where value and gradient are needed for what follows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import isfinite

from cotswold.optim.search.base import Ask, Line, Outcome, Start, Trial


@dataclass(frozen=True)
class BunyipSearch:
    """How the search goes."""

    part: float = 0.1
    """The fraction of the patterns that the sign of a slope is asked on."""
    growth: float = 2.0
    """By how much steps grow and shrink."""
    brackets: int = 20
    """How many slopes may be asked for."""
    trials: int = 8
    """How many steps may be evaluated on all patterns; each is smaller, after the first."""

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1 or not self.growth > 1 or self.brackets < 1 or self.trials < 1:
            raise ValueError("0 < part <= 1, growth > 1, brackets >= 1 and trials >= 1 are needed")

    def along(self, start: Start) -> Line:
        """Bracket, interpolate, evaluate; again by slopes on all patterns where those on a part deceived."""
        deceived = None
        for part in (self.part, None) if self.part < 1 else (None,):
            found = yield from self._along(start, part)
            if found.step is not None:
                return Outcome(found.step, deceived or found.weak)
            deceived = "slopes on part of the patterns led to no lower value; those on all were asked"
        return Outcome(None, "no step goes down, whatever the slopes say")

    def _along(self, start: Start, part: float | None) -> Line:
        """A step where the value is lower than at the start, by slopes on part of the patterns or on all;
        back towards the start where the first one is not."""
        low, high = yield from self._bracket(start, part)
        weak = None
        if high is None:
            step, weak = low.step, "the line went down as far as was looked"
        elif isfinite(high.slope):
            step = low.step - low.slope * (high.step - low.step) / (high.slope - low.slope)
        else:
            step = (low.step + high.step) / 2.0
        for _ in range(self.trials):
            trial = yield Ask(step)
            if trial.finite and trial.value < start.value:
                return Outcome(step, weak)
            shorter = 1.0 / self.growth
            if trial.finite and trial.slope > 0.0:  # a parabola through both slopes, of all patterns now
                shorter = min(shorter, start.slope / (start.slope - trial.slope))
            step, weak = step * shorter, "the value was higher where the slopes said it was lowest"
        return Outcome(None)

    def _bracket(self, start: Start, part: float | None) -> Generator[Ask, Trial, tuple[Trial, Trial | None]]:
        """A step where the line goes down, and the next one that does not; None where none was met."""
        low, high, step = Trial(0.0, start.value, start.slope), None, start.step
        for _ in range(self.brackets):
            trial = yield Ask(step, part)
            if isfinite(trial.slope) and trial.slope < 0.0:
                low = trial
                if high is not None:
                    break
                step *= self.growth
            else:
                forward, high = low.step > 0.0, trial
                if forward:
                    break
                step /= self.growth
        return low, high
