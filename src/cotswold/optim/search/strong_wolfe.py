"""Line search of Moré and Thuente (1994) for the strong Wolfe conditions.

Knows: values and slopes at steps. Does not know: vectors, evaluations.

The conditions, for 0 < decrease < curvature < 1:

    φ(α) ≤ φ(0) + decrease · α · φ'(0)   and   |φ'(α)| ≤ curvature · |φ'(0)|

An interval that contains such a step shrinks around the minimum of cubics and parabolas through its ends.
Until the search meets a step with enough decrease and a rising slope, it fits ψ(α) = φ(α) − φ(0) − decrease ·
α · φ'(0) instead (section 3 of the article).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import copysign, inf, sqrt

from cotswold.optim.search.base import Line, Outcome, Start, Trial, TrialRequest


@dataclass(frozen=True)
class StrongWolfe:
    """Line search for the strong Wolfe conditions.

    Args:
        decrease: fraction of the initial slope's predicted decrease that is required.
        curvature: largest remaining slope, as a fraction of the initial slope; about 0.4 for conjugate
            gradient.
        trials: largest number of evaluations per search.
        longest: longest step, as a multiple of the first step.
        narrowest: width of the interval, relative to its upper end, at which the search gives up.

    Raises:
        ValueError: unless 0 < decrease < curvature < 1, trials >= 1 and longest > 0.

    Source: Moré and Thuente 1994.
    """

    decrease: float = 1e-4
    """Required fraction of the decrease that the initial slope predicts."""
    curvature: float = 0.9
    """Largest remaining slope, as a fraction of the initial slope. Conjugate gradient needs about 0.4."""
    trials: int = 20
    """Largest number of evaluations per search."""
    longest: float = 1e10
    """Longest step, as a multiple of the first step, so it does not depend on the unit of the loss."""
    narrowest: float = 1e-10
    """Width of the interval, relative to its upper end, at which the search gives up."""

    def __post_init__(self) -> None:
        if not 0 < self.decrease < self.curvature < 1:
            raise ValueError(
                f"StrongWolfe needs 0 < decrease < curvature < 1, got decrease={self.decrease}, "
                f"curvature={self.curvature}"
            )
        if self.trials < 1 or not self.longest > 0:
            raise ValueError("StrongWolfe needs trials >= 1 and longest > 0")

    def find_step(self, start: Start) -> Line:
        """Search until the conditions hold; if they cannot, return the best step met.

        Args:
            start: value and slope at 0, and the first step to try.

        Returns:
            A generator that yields `TrialRequest`, receives `Trial` and returns `Outcome`.
        """
        slope_limit = self.decrease * start.slope
        interval = Interval(Trial(0.0, start.value, start.slope), Trial(0.0, start.value, start.slope))
        best = interval.best
        shift = True  # interpolate ψ instead of φ
        width = before = inf
        limit = self.longest * start.step
        step, lower, upper = min(start.step, limit), 0.0, 5.0 * start.step
        for _ in range(self.trials):
            trial = yield TrialRequest(step)
            if not trial.finite:  # too far: back towards the best step, and never this far again
                near, far = interval.best.step, step
                step, limit = near + 0.1 * (far - near), near + 0.5 * (far - near)
                upper = min(upper, limit)
                if step == near:
                    break
                continue
            enough = trial.value <= start.value + trial.step * slope_limit
            if enough and abs(trial.slope) <= -self.curvature * start.slope:
                return Outcome(trial.step)
            if enough and trial.value < best.value:
                best = trial
            if trial.step == limit and enough and trial.slope <= slope_limit:
                return Outcome(trial.step, "the line still descends at the longest allowed step")
            shift = shift and not (enough and trial.slope >= 0.0)
            tilted = shift and not enough and trial.value <= interval.best.value
            by = slope_limit if tilted else 0.0
            interval, step = narrow_interval(interval.tilted(-by), tilt(trial, -by), lower, upper)
            interval = interval.tilted(by)
            if interval.is_bracket:
                now = abs(interval.other.step - interval.best.step)
                if now >= 0.66 * before:
                    step = interval.best.step + 0.5 * (interval.other.step - interval.best.step)
                before, width = width, now
                lower, upper = sorted((interval.best.step, interval.other.step))
                if upper - lower <= self.narrowest * upper:
                    break
            else:
                lower = step + 1.1 * (step - interval.best.step)
                upper = step + 4.0 * (step - interval.best.step)
            step = min(max(step, 0.0), limit)
            if interval.is_bracket and not lower < step < upper:
                step = interval.best.step
            if step == interval.best.step:  # rounding leaves nothing between the ends
                break
        if best.step > 0.0:
            return Outcome(best.step, "the slope is not small enough, and the search found no better step")
        return Outcome(None, "no step decreases the value enough")


@dataclass(frozen=True)
class Interval:
    """Two ends: the best trial so far, and the trial on the other side of the minimum."""

    best: Trial
    other: Trial
    is_bracket: bool = False
    """True if a minimum is known to lie between the ends."""

    def tilted(self, slope: float) -> Interval:
        """Return the same ends of φ + slope · α."""
        return replace(self, best=tilt(self.best, slope), other=tilt(self.other, slope))


def tilt(trial: Trial, by: float) -> Trial:
    """Return a trial of φ + by · α."""
    return Trial(trial.step, trial.value + by * trial.step, trial.slope + by)


def root(a: Trial, b: Trial) -> tuple[float, float, float]:
    """θ and γ of the cubic through two trials (section 4), γ with the sign of b − a; and γ² over a scale."""
    theta = 3.0 * (a.value - b.value) / (b.step - a.step) + a.slope + b.slope
    scale = max(abs(theta), abs(a.slope), abs(b.slope)) or 1.0
    inside = (theta / scale) ** 2 - (a.slope / scale) * (b.slope / scale)
    return theta, copysign(scale * sqrt(max(0.0, inside)), b.step - a.step), inside


def cubic(a: Trial, b: Trial) -> float:
    """Minimum of the cubic through two trials; halfway between them if rounding leaves none."""
    theta, gamma, _ = root(a, b)
    below = (gamma - a.slope) + gamma + b.slope
    ratio = ((gamma - a.slope) + theta) / below if below != 0.0 else 0.5
    return a.step + ratio * (b.step - a.step)


def secant(a: Trial, b: Trial) -> float:
    """Zero of the linear interpolation of the slope."""
    return b.step + b.slope / (b.slope - a.slope) * (a.step - b.step)


def narrow_interval(interval: Interval, trial: Trial, lower: float, upper: float) -> tuple[Interval, float]:
    """Return the interval narrowed by a trial, and the step to try next: the four cases of section 4."""
    x, y = interval.best, interval.other
    if trial.value > x.value:  # higher: a minimum is bracketed
        drop = (x.value - trial.value) / (trial.step - x.step)
        parabola = x.step + x.slope / (drop + x.slope) / 2.0 * (trial.step - x.step)
        near = cubic(x, trial)
        if abs(near - x.step) >= abs(parabola - x.step):
            near += (parabola - near) / 2.0
        return Interval(x, trial, True), near
    if trial.slope * copysign(1.0, x.slope) < 0.0:  # lower, and the slope has turned: bracketed
        steps = cubic(trial, x), secant(x, trial)
        return Interval(trial, x, True), max(steps, key=lambda step: abs(step - trial.step))
    beyond = upper if trial.step > x.step else lower
    if abs(trial.slope) >= abs(x.slope):  # lower, and not flatter
        step = cubic(trial, y) if interval.is_bracket else beyond
        return Interval(trial, y, interval.is_bracket), step
    theta, gamma, inside = root(trial, x)  # lower, flatter, still going down
    below = (gamma + (x.slope - trial.slope)) + gamma
    ratio = ((gamma - trial.slope) + theta) / below if below != 0.0 else 0.0
    found = trial.step + ratio * (x.step - trial.step) if ratio < 0.0 and inside > 0.0 else beyond
    steps = found, secant(x, trial)
    if not interval.is_bracket:
        step = max(steps, key=lambda step: abs(step - trial.step))
        return Interval(trial, y), min(max(step, lower), upper)
    step = min(steps, key=lambda step: abs(step - trial.step))
    edge = trial.step + 0.66 * (y.step - trial.step)
    return Interval(trial, y, True), min(edge, step) if trial.step > x.step else max(edge, step)
