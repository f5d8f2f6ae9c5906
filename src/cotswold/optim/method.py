"""Base of the methods: an iteration is a direction and a line search along it.

Knows: commands, evaluations, line searches. Does not know: which direction, where vectors are stored.

A method uses these vectors: ``x`` is the point, ``g`` its gradient, ``d`` the direction, ``trial`` = x + α d
and ``trial_g`` its gradient. A step is x ← x + α d, the same sum that made the trial, so a process that holds
x and d needs only α. All commands of a step travel with an evaluation: the updates that end a step (of x and
g) wait for the next evaluation, or for `flush`. So an iteration takes two rounds per evaluation and no other
round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, sqrt
from typing import Any

from cotswold.errors import DivergedError
from cotswold.optim.iteration import Iteration
from cotswold.optim.objective import Evaluation, Objective
from cotswold.optim.search.base import Search, Start, Trial, TrialRequest
from cotswold.optim.vectors.base import Combine, Command, Dot, Vectors


@dataclass(frozen=True)
class MethodState:
    """State of a method between two steps, for resume."""

    values: Mapping[str, object]
    """Scalars and lists; JSON saves them exactly."""
    vectors: tuple[str, ...]
    """Names of the vectors to save."""


@dataclass(frozen=True)
class Plan:
    """A direction that is not computed yet."""

    terms: tuple[tuple[float, str], ...]
    slope: float
    """Inner product of the direction and the gradient."""
    squared: float
    """Inner product of the direction with itself; approximate if the direction is a sum of many terms."""
    steepest: bool
    restart_reason: str | None = None
    """Reason for an unexpected restart with steepest descent; None otherwise."""

    def to_state(self) -> dict[str, object]:
        """Return the values to save; ``why`` is the saved name of `restart_reason`."""
        values = asdict(self)
        reason = values.pop("restart_reason")
        return {**values, "why": reason}


@dataclass(frozen=True)
class Point:
    """Value, gradient norm and samples of the current point."""

    value: float
    squared: float
    """g·g"""
    sample_set: str
    samples: int
    penalty: float = 0.0


@dataclass
class IterationStats:
    """Evaluations of an iteration, and why it restarted or skipped an update."""

    whole: int = 0
    partial: int = 0
    restart: str | None = None
    skipped: str | None = None
    promised: float = 0.0


COMMON = (Dot("trial_g", "d"), Dot("g", "d"), Dot("trial_g", "trial_g"), Dot("d", "d"))
"""Dots that every method needs of a trial."""


@dataclass(frozen=True)
class AcceptedStep:
    """A step: its length, g·g at its start, and the dots of `COMMON`."""

    step: float
    old_squared: float
    slope: float
    start_slope: float
    squared: float
    direction_squared: float


class IncomparableError(Exception):
    """An evaluation used a different sample set than the rest of the cycle."""


SLOPE_TOLERANCE = 0.5
"""Largest relative error of the slope predicted from dots, before the direction is discarded."""


class Method(ABC):
    """An optimisation method on named vectors: a direction combined with a line search.

    The starting point is the vector ``x``. Subclasses choose the direction: `LBFGSMethod`, `CGMethod`.

    Args:
        vectors: the named vectors, wherever they are stored.
        objective: the function to minimise; it computes value and gradient at a named vector.
        line_search: the line search.
        cycle_iterations: iterations after which the objective draws a new sample set; None keeps the first
            set.

    Raises:
        ValueError: if `cycle_iterations` is below 1.
    """

    kind: str

    def __init__(
        self, vectors: Vectors, objective: Objective, line_search: Search, cycle_iterations: int | None = None
    ) -> None:
        if cycle_iterations is not None and cycle_iterations < 1:
            raise ValueError(f"cycle_iterations must be at least 1, or None; got {cycle_iterations}")
        self._vectors, self._objective, self._search, self._cycle = (
            vectors,
            objective,
            line_search,
            cycle_iterations,
        )
        self._pending: list[Command] = []
        self._point: Point | None = None
        self._plan: Plan | None = None
        # value, slope and step of the last iteration
        self._previous: tuple[float, float, float] | None = None
        self._number = self._since = 0

    def step(self) -> Iteration:
        """Run one iteration: compute a direction, search along it, take a step.

        Returns:
            What the iteration did. If no step could be found, `Iteration.failure` says why and ``x`` is
            unchanged.

        Raises:
            DivergedError: if the objective or its gradient is not finite at the current point.
        """
        count = IterationStats()
        try:
            if self._point is None or (self._cycle is not None and self._since >= self._cycle):
                self._evaluate_new_samples(count)
            return self._run_iteration(count)
        except IncomparableError as error:
            count.skipped = str(error)
            self._evaluate_new_samples(count)
            return self._make_result(count, 0.0, None)

    def flush(self) -> None:
        """Run the commands that wait for an evaluation, so that ``x`` and ``g`` are up to date."""
        if self._pending:
            self._vectors.run(self._pending)
            self._pending = []

    def state(self) -> MethodState:
        """Return the state from which `load` resumes; calls `flush` first.

        Returns:
            The scalars, and the names of the vectors to save.
        """
        self.flush()
        values = {
            "kind": self.kind,
            "number": self._number,
            "since": self._since,
            "point": None if self._point is None else asdict(self._point),
            "plan": None if self._plan is None else self._plan.to_state(),
            "previous": self._previous,
            **self._direction_state(),
        }
        return MethodState(values, ("x", *([] if self._point is None else ["g", *self._direction_vectors()])))

    def load(self, values: Mapping[str, Any]) -> None:
        """Resume from a saved state. The caller has restored the vectors under their names.

        Args:
            values: `MethodState.values` of a method of the same kind.

        Raises:
            ValueError: if the state belongs to another kind of method.
        """
        if values.get("kind") != self.kind:
            raise ValueError(f"the state is of method {values.get('kind')!r}; expected {self.kind!r}")
        point, plan, previous = values["point"], values["plan"], values["previous"]
        self._pending = []
        self._number, self._since = int(values["number"]), int(values["since"])
        self._point = None if point is None else Point(**point)
        if plan is not None:
            terms = tuple((factor, name) for factor, name in plan["terms"])
            plan = Plan(terms, plan["slope"], plan["squared"], plan["steepest"], plan.get("why"))
        self._plan = plan
        self._previous = None if previous is None else (previous[0], previous[1], previous[2])

    @abstractmethod
    def _start_dots(self) -> list[Command]:
        """Dots with the first gradient of a cycle, ``g``, in addition to g·g."""

    @abstractmethod
    def _plan_at_start(self, dots: Sequence[float]) -> Plan:
        """Direction from the first gradient of a cycle."""

    @abstractmethod
    def _trial_commands(self, step: float) -> list[Command]:
        """Commands and dots with a trial's gradient, in addition to `COMMON`."""

    @abstractmethod
    def _plan_after(self, taken: AcceptedStep, dots: Sequence[float], counted: IterationStats) -> Plan:
        """Direction from the gradient after a step; sets ``counted.skipped`` if it skips an update."""

    @abstractmethod
    def _reset_direction(self) -> None:
        """Discard the history, so that the next direction is steepest descent."""

    @abstractmethod
    def _first_step(self, plan: Plan) -> float:
        """First step length that the search tries."""

    def _direction_state(self) -> dict[str, object]:
        """Further scalars to save; `load` receives them."""
        return {}

    @abstractmethod
    def _direction_vectors(self) -> list[str]:
        """Vectors to save in addition to x and g."""

    def _evaluate_new_samples(self, count: IterationStats) -> None:
        """Evaluate value and gradient at the point, over a new sample set that the objective chooses."""
        again = self._point is not None
        after = [Dot("g", "g"), *self._start_dots()]
        found = self._evaluate("x", "g", [], after, None)
        count.whole += 1
        squared = found.dots[0]
        if not (isfinite(found.value) and isfinite(squared)):
            raise DivergedError(
                f"at the current point the objective is {found.value}, its squared gradient norm {squared}: "
                "start from another point, or look for non-finite numbers in the data or the network"
            )
        self._point = Point(found.value, squared, found.sample_set, found.samples, found.penalty)
        self._plan, self._since, self._previous = self._plan_at_start(found.dots[1:]), 0, None
        if again and self._plan.steepest:
            count.restart = "a new sample set was drawn"

    def _run_iteration(self, count: IterationStats) -> Iteration:
        assert self._point is not None and self._plan is not None
        if self._point.squared == 0.0:
            return self._make_result(count, 0.0, "the gradient is zero")
        why = None
        for plan in (self._plan, self._steepest_descent()):
            if not plan.slope < 0.0:
                why = why or f"not a descent direction: its slope is {plan.slope:.3g}"
                continue
            if plan.restart_reason or (why and plan.steepest):
                count.restart = count.restart or plan.restart_reason or why
            step, failed = self._search_line(plan, count)
            if step is not None:
                return self._make_result(count, step, None)
            why = failed
            if plan.steepest:
                break
            self._reset_direction()
        self._reset_direction()
        self._plan, self._previous = self._steepest_descent(), None
        return self._make_result(count, 0.0, why)

    def _steepest_descent(self) -> Plan:
        assert self._point is not None
        return Plan(((-1.0, "g"),), -self._point.squared, self._point.squared, True)

    def _search_line(self, plan: Plan, count: IterationStats) -> tuple[float | None, str | None]:
        """Search along a direction and move to the step found; return the step, or None and the reason."""
        point = self._point
        assert point is not None
        line = self._search.find_step(Start(point.value, plan.slope, self._first_step(plan)))
        making: list[Command] = [Combine("d", plan.terms)]
        made = any(name == "d" for _, name in plan.terms)
        # if an exception interrupts the search, the next one starts with the same direction
        self._plan = replace(plan, terms=((1.0, "d"),)) if made else plan
        last: tuple[float, Evaluation] | None = None
        trial: Trial | None = None
        while True:
            try:
                ask = next(line) if trial is None else line.send(trial)
            except StopIteration as stop:
                outcome = stop.value
                break
            found = self._evaluate_trial(ask, making, count)
            making, last = [], None
            slope = found.dots[0]
            if ask.part is None:
                last = ask.step, found
                lost = abs(found.dots[1] - plan.slope) > SLOPE_TOLERANCE * abs(plan.slope)
                if lost or not found.dots[1] < 0.0:
                    return (
                        None,
                        f"rounding: the direction's slope is {found.dots[1]:.3g}, expected {plan.slope:.3g}",
                    )
            trial = Trial(ask.step, found.value, slope)
        if outcome.step is None:
            return None, outcome.weak
        if last is None or last[0] != outcome.step:
            last = outcome.step, self._evaluate_trial(TrialRequest(outcome.step), making, count)
        self._accept_step(plan, *last, count)
        return outcome.step, None

    def _evaluate_trial(
        self, ask: TrialRequest, making: Sequence[Command], count: IterationStats
    ) -> Evaluation:
        """Evaluate value and gradient at a step along ``d``, or only the slope on a fraction of samples."""
        assert self._point is not None
        sample_set = self._point.sample_set
        before = [*making, Combine("trial", ((1.0, "x"), (ask.step, "d")))]
        if ask.part is not None:
            count.partial += 1
            named = self._objective.part(sample_set, ask.part)
            return self._evaluate("trial", "trial_g", before, [Dot("trial_g", "d")], named)
        count.whole += 1
        after = [*COMMON, *self._trial_commands(ask.step)]
        found = self._evaluate("trial", "trial_g", before, after, sample_set)
        if found.sample_set != sample_set:
            raise IncomparableError(f"an evaluation used samples {found.sample_set}, expected {sample_set}")
        return found

    def _evaluate(
        self,
        at: str,
        gradient: str,
        before: Sequence[Command],
        after: Sequence[Command],
        sample_set: str | None,
    ) -> Evaluation:
        waiting, self._pending = self._pending, []  # even an evaluation that fails has run them
        return self._objective.evaluate(
            at, gradient, before=[*waiting, *before], after=after, sample_set=sample_set
        )

    def _accept_step(self, plan: Plan, step: float, found: Evaluation, count: IterationStats) -> None:
        assert self._point is not None
        before = self._point
        taken = AcceptedStep(step, before.squared, *found.dots[: len(COMMON)])
        self._previous = before.value, plan.slope, step
        self._pending += [Combine("x", ((1.0, "x"), (step, "d"))), Combine("g", ((1.0, "trial_g"),))]
        self._point = replace(before, value=found.value, squared=taken.squared, penalty=found.penalty)
        count.promised = -0.5 * step * (taken.start_slope + taken.slope)
        self._plan = self._plan_after(taken, found.dots[len(COMMON) :], count)

    def _make_result(self, count: IterationStats, step: float, failure: str | None) -> Iteration:
        assert self._point is not None
        self._number += 1
        self._since += 1
        point = self._point
        return Iteration(
            number=self._number,
            value=point.value,
            gradient_norm=sqrt(point.squared),
            step=step,
            evaluations=count.whole,
            partial_evaluations=count.partial,
            sample_set=point.sample_set,
            samples=point.samples,
            restart=count.restart,
            skipped=count.skipped,
            failure=failure,
            penalty=point.penalty,
            predicted_decrease=count.promised,
        )
