"""The search of Moré and Thuente (1994) for a step that meets the strong Wolfe conditions.

Knows: values and slopes at steps. Does not know: vectors, evaluations.

The conditions, for 0 < decrease < curvature < 1:

    φ(α) ≤ φ(0) + decrease · α · φ'(0)   and   |φ'(α)| ≤ curvature · |φ'(0)|

An interval that holds such a step shrinks around the minimum of cubics and parabolas through its ends. As
long as no step with enough decrease was met whose slope rises, these are drawn for ψ(α) = φ(α) − φ(0) −
decrease · α · φ'(0) instead (section 3 of the article).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import copysign, inf, sqrt

from cotswold.optim.search.base import Ask, Line, Outcome, Start, Trial


@dataclass(frozen=True)
class StrongWolfe:
    """What the search demands."""

    decrease: float = 1e-4
    """How much of the first slope's promise must be kept."""
    curvature: float = 0.9
    """How much of the first slope may be left. Conjugate gradient wants less, 0.4 or so."""
    trials: int = 20
    """How many evaluations a search may take."""
    longest: float = 1e10
    """The longest step, in first steps: as these, it does not depend on the unit of the loss."""
    narrowest: float = 1e-10
    """How narrow the interval may become, relative to its end, before the search gives up."""

    def __post_init__(self) -> None:
        if not 0 < self.decrease < self.curvature < 1:
            raise ValueError(
                f"0 < decrease < curvature < 1 is needed, not {self.decrease} and {self.curvature}"
            )
        if self.trials < 1 or not self.longest > 0:
            raise ValueError("trials must be at least 1, longest above 0")

    def along(self, start: Start) -> Line:
        """Ask until the conditions hold; the best step met where they cannot be."""
        slope_limit = self.decrease * start.slope
        interval = Interval(Trial(0.0, start.value, start.slope), Trial(0.0, start.value, start.slope))
        best = interval.best
        shift = True  # interpolate ψ instead of φ
        width = before = inf
        limit = self.longest * start.step
        step, lower, upper = min(start.step, limit), 0.0, 5.0 * start.step
        for _ in range(self.trials):
            trial = yield Ask(step)
            if not trial.finite:  # too far: back towards the best, and never again as far
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
                return Outcome(trial.step, "the longest step that is allowed still goes down")
            shift = shift and not (enough and trial.slope >= 0.0)
            tilted = shift and not enough and trial.value <= interval.best.value
            by = slope_limit if tilted else 0.0
            interval, step = narrowed(interval.tilted(-by), tilt(trial, -by), lower, upper)
            interval = interval.tilted(by)
            if interval.bracketed:
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
            if interval.bracketed and not lower < step < upper:
                step = interval.best.step
            if step == interval.best.step:  # rounding leaves nothing between the ends
                break
        if best.step > 0.0:
            return Outcome(best.step, "the slope is not small enough, and no better step was found")
        return Outcome(None, "no step goes down enough")


@dataclass(frozen=True)
class Interval:
    """Two ends: the best trial so far, and the one on the other side."""

    best: Trial
    other: Trial
    bracketed: bool = False
    """Whether a minimum is known to lie between them."""

    def tilted(self, by: float) -> Interval:
        """The same ends of φ + by · α."""
        return replace(self, best=tilt(self.best, by), other=tilt(self.other, by))


def tilt(trial: Trial, by: float) -> Trial:
    """A trial of φ + by · α."""
    return Trial(trial.step, trial.value + by * trial.step, trial.slope + by)


def root(a: Trial, b: Trial) -> tuple[float, float, float]:
    """θ and γ of the cubic through two trials (section 4), γ with the sign of b − a; γ² over a scale."""
    theta = 3.0 * (a.value - b.value) / (b.step - a.step) + a.slope + b.slope
    scale = max(abs(theta), abs(a.slope), abs(b.slope)) or 1.0
    inside = (theta / scale) ** 2 - (a.slope / scale) * (b.slope / scale)
    return theta, copysign(scale * sqrt(max(0.0, inside)), b.step - a.step), inside


def cubic(a: Trial, b: Trial) -> float:
    """Where the cubic through two trials is lowest; halfway where rounding leaves none."""
    theta, gamma, _ = root(a, b)
    below = (gamma - a.slope) + gamma + b.slope
    ratio = ((gamma - a.slope) + theta) / below if below != 0.0 else 0.5
    return a.step + ratio * (b.step - a.step)


def secant(a: Trial, b: Trial) -> float:
    """Where the slope would be zero if it changed evenly."""
    return b.step + b.slope / (b.slope - a.slope) * (a.step - b.step)


def narrowed(interval: Interval, trial: Trial, lower: float, upper: float) -> tuple[Interval, float]:
    """The interval with a trial in it, and the step to try next: the four cases of section 4."""
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
        step = cubic(trial, y) if interval.bracketed else beyond
        return Interval(trial, y, interval.bracketed), step
    theta, gamma, inside = root(trial, x)  # lower, flatter, still going down
    below = (gamma + (x.slope - trial.slope)) + gamma
    ratio = ((gamma - trial.slope) + theta) / below if below != 0.0 else 0.0
    found = trial.step + ratio * (x.step - trial.step) if ratio < 0.0 and inside > 0.0 else beyond
    steps = found, secant(x, trial)
    if not interval.bracketed:
        step = max(steps, key=lambda step: abs(step - trial.step))
        return Interval(trial, y), min(max(step, lower), upper)
    step = min(steps, key=lambda step: abs(step - trial.step))
    edge = trial.step + 0.66 * (y.step - trial.step)
    return Interval(trial, y, True), min(edge, step) if trial.step > x.step else max(edge, step)
