"""Line search of Bunyip: steps double or halve, by the sign of the slope on a fraction of the samples.

Knows: slopes and values at steps. Does not know: vectors, evaluations, which samples a fraction has.

Aberdeen, Baxter and Edwards 2000, section 4.2: an exponential sequence of steps brackets the minimum by the
sign of gradient · direction, "and the sign can be reliably estimated with far fewer training patterns than is
required to estimate the error"; a parabola through both ends gives the step. All samples are evaluated once,
at that step, where the method needs value and gradient anyway.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import isfinite

from cotswold.optim.search.base import Line, Outcome, Start, Trial, TrialRequest


@dataclass(frozen=True)
class BunyipSearch:
    """Line search by slopes on a fraction of the samples.

    Args:
        part: fraction of the samples that a slope's sign is evaluated on.
        growth: factor by which steps grow and shrink.
        brackets: largest number of slopes evaluated.
        trials: largest number of steps evaluated on all samples; each after the first is shorter.

    Raises:
        ValueError: unless 0 < part <= 1, growth > 1, brackets >= 1 and trials >= 1.

    Source: Aberdeen, Baxter and Edwards 2000, section 4.2.
    """

    part: float = 0.1
    """Fraction of the samples that a slope's sign is evaluated on."""
    growth: float = 2.0
    """Factor by which steps grow and shrink."""
    brackets: int = 20
    """Largest number of slopes evaluated."""
    trials: int = 8
    """Largest number of steps evaluated on all samples; each after the first is shorter."""

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1 or not self.growth > 1 or self.brackets < 1 or self.trials < 1:
            raise ValueError("BunyipSearch needs 0 < part <= 1, growth > 1, brackets >= 1 and trials >= 1")

    def find_step(self, start: Start) -> Line:
        """Bracket, interpolate, evaluate; if slopes on a fraction misled, repeat with all samples.

        Args:
            start: value and slope at 0, and the first step to try.

        Returns:
            A generator that yields `TrialRequest`, receives `Trial` and returns `Outcome`.
        """
        deceived = None
        for part in (self.part, None) if self.part < 1 else (None,):
            found = yield from self._search(start, part)
            if found.step is not None:
                return Outcome(found.step, deceived or found.weak)
            deceived = "slopes on a fraction of the samples led to no lower value; slopes on all were used"
        return Outcome(None, "no step lowers the value, whatever the slopes say")

    def _search(self, start: Start, part: float | None) -> Line:
        """Find a step with a lower value than at the start; shorten the first step until it is lower."""
        low, high = yield from self._bracket(start, part)
        weak = None
        if high is None:
            step, weak = low.step, "the line still descends at the longest step tried"
        elif isfinite(high.slope):
            step = low.step - low.slope * (high.step - low.step) / (high.slope - low.slope)
        else:
            step = (low.step + high.step) / 2.0
        for _ in range(self.trials):
            trial = yield TrialRequest(step)
            if trial.finite and trial.value < start.value:
                return Outcome(step, weak)
            shorter = 1.0 / self.growth
            if trial.finite and trial.slope > 0.0:  # a parabola through both slopes, now of all samples
                shorter = min(shorter, start.slope / (start.slope - trial.slope))
            step, weak = step * shorter, "the value was higher where the slopes predicted the minimum"
        return Outcome(None)

    def _bracket(
        self, start: Start, part: float | None
    ) -> Generator[TrialRequest, Trial, tuple[Trial, Trial | None]]:
        """A step where the line descends, and the next one where it does not (None if none was met)."""
        low, high, step = Trial(0.0, start.value, start.slope), None, start.step
        for _ in range(self.brackets):
            trial = yield TrialRequest(step, part)
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
