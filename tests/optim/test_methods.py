"""Methods: rounds of messages, stop and resume, random samples, and all failures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from math import inf, nan
from typing import Any

import pytest
import torch
from tests.support.optim.objectives import CountedVectors, Patterns
from torch import Tensor

from cotswold.errors import DivergedError
from cotswold.optim import (
    ApproximateWolfe,
    BunyipSearch,
    CGMethod,
    FunctionObjective,
    Iteration,
    LBFGSMethod,
    Method,
    Objective,
    Search,
    StrongWolfe,
    TensorVectors,
    Vectors,
)
from cotswold.optim.cg import BETAS

SEARCHES: dict[str, Search] = {
    "strong": StrongWolfe(curvature=0.4),
    "approximate": ApproximateWolfe(curvature=0.4),
    "bunyip": BunyipSearch(part=0.3),
}
Make = Callable[[Vectors, Objective, int | None], Method]


def makes() -> dict[str, Make]:
    """Return every method with every search."""
    found: dict[str, Make] = {}
    for name, search in SEARCHES.items():
        found[f"lbfgs {name}"] = lambda v, o, cycle, s=search: LBFGSMethod(  # type: ignore[misc]  # a default
            v, o, history_size=3, line_search=s, cycle_iterations=cycle
        )
        for beta in BETAS:
            found[f"{beta} {name}"] = lambda v, o, cycle, s=search, b=beta: CGMethod(  # type: ignore[misc]  # defaults bind
                v, o, beta=b, line_search=s, cycle_iterations=cycle
            )
    return found


MAKES = makes()
MISSPELT: Any = "fletcher"


def zeros(size: int = 8) -> Tensor:
    return torch.zeros(size, dtype=torch.float64)


@cache
def least() -> float:
    """Return the minimum of the regression, by many iterations."""
    vectors = TensorVectors(zeros())
    method = LBFGSMethod(vectors, Patterns(vectors))
    return min(method.step().value for _ in range(40))


@pytest.mark.parametrize("name", MAKES)
def test_every_method_with_every_search_reaches_the_minimum(name: str) -> None:
    vectors = TensorVectors(zeros())
    method = MAKES[name](vectors, Patterns(vectors), None)
    values = [method.step().value for _ in range(40)]
    # a search that is led by part of the samples ends where these say; the others at the minimum
    assert values[-1] == pytest.approx(least(), rel=0.03 if "bunyip" in name else 1e-6)
    if "approximate" not in name:  # whose values may rise by rounding
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("memory", [1, 4, 20])
def test_an_iteration_takes_two_rounds_an_evaluation_whatever_the_history(memory: int) -> None:
    vectors = CountedVectors(zeros())
    method = LBFGSMethod(vectors, Patterns(vectors), history_size=memory)
    for number in range(8):
        before = vectors.rounds
        iteration = method.step()
        assert vectors.rounds - before == 2 * iteration.evaluations
        assert number == 0 or vectors.rounds - before <= 4


@pytest.mark.parametrize("name", MAKES)
def test_no_method_asks_for_a_round_besides_its_evaluations(name: str) -> None:
    vectors = CountedVectors(zeros())
    method = MAKES[name](vectors, Patterns(vectors), 3)
    for _ in range(10):
        before = vectors.rounds
        iteration = method.step()
        assert vectors.rounds - before == 2 * (iteration.evaluations + iteration.partial_evaluations)


@pytest.mark.parametrize(
    ("name", "cycle"), [*((name, None) for name in MAKES), ("lbfgs strong", 2), ("hager-zhang bunyip", 2)]
)
def test_a_method_that_is_stopped_and_resumed_goes_on_with_the_same_bits(
    name: str, cycle: int | None
) -> None:
    vectors = TensorVectors(zeros())
    whole = MAKES[name](vectors, Patterns(vectors), cycle)
    expected = [whole.step() for _ in range(9)]
    stopped = TensorVectors(zeros())
    objective = Patterns(stopped)
    method, found = MAKES[name](stopped, objective, cycle), []
    for _ in range(9):
        state = method.state()
        words = json.loads(json.dumps(state.values))
        kept = TensorVectors(stopped["x"][0].clone())
        for vector in state.vectors:
            kept.make(vector)[0].copy_(stopped[vector][0])
        stopped = objective._vectors = kept  # everything else is gone
        method = MAKES[name](stopped, objective, cycle)
        method.load(words)
        found.append(method.step())
    whole.flush()
    method.flush()
    assert found == expected
    assert torch.equal(stopped["x"][0], vectors["x"][0])


def test_a_state_stays_as_it_was_while_the_method_goes_on() -> None:
    vectors = TensorVectors(zeros())
    method = LBFGSMethod(vectors, Patterns(vectors), history_size=2)
    for _ in range(3):
        method.step()
    values = method.state().values
    before = json.dumps(values)
    method.step()
    assert json.dumps(values) == before


@pytest.mark.parametrize("kind", [LBFGSMethod, CGMethod])
def test_in_float32_a_method_gets_past_where_the_decrease_is_lost_in_rounding(kind: type[Method]) -> None:
    def gradient_left(**settings: Any) -> float:
        vectors = TensorVectors(torch.zeros(8))
        objective = Patterns(vectors)
        method = kind(vectors, objective, **settings)
        for _ in range(80):
            if method.step().failure is not None:
                break
        method.flush()
        return float(objective.value(vectors["x"][0], "0")[1].norm())

    strong = StrongWolfe(curvature=0.9 if kind is LBFGSMethod else 0.4)
    assert gradient_left() < 0.1 * gradient_left(line_search=strong)


def test_a_state_of_another_method_is_refused() -> None:
    vectors = TensorVectors(zeros())
    state = CGMethod(vectors, Patterns(vectors)).state()
    with pytest.raises(ValueError, match="method 'cg'; expected 'lbfgs'"):
        LBFGSMethod(vectors, Patterns(vectors)).load(state.values)


def test_a_smaller_memory_than_was_saved_keeps_the_youngest_pairs() -> None:
    vectors = TensorVectors(zeros())
    objective = Patterns(vectors)
    method = LBFGSMethod(vectors, objective, history_size=6)
    for _ in range(9):
        method.step()
    state = method.state()
    smaller = LBFGSMethod(vectors, objective, history_size=2)
    smaller.load(state.values)
    slots = state.values["slots"]
    assert isinstance(slots, list) and smaller.state().values["slots"] == slots[-2:]
    assert [smaller.step().failure for _ in range(4)] == [None] * 4


# samples that are drawn


@pytest.mark.parametrize("name", ["lbfgs strong", "polak-ribiere strong", "polak-ribiere bunyip"])
def test_all_evaluations_of_a_cycle_count_one_set_and_each_cycle_draws_anew(name: str) -> None:
    vectors = TensorVectors(zeros())
    objective = Patterns(vectors, fraction=0.6)
    method = MAKES[name](vectors, objective, 3)
    iterations = [method.step() for _ in range(9)]
    sets = [iteration.sample_set for iteration in iterations]
    assert sets == [f"{cycle} 0.6" for cycle in range(3) for _ in range(3)]
    drawn = [asked.split()[0] for asked in objective.asked]
    assert drawn == sorted(drawn)  # and no evaluation of a cycle after the next has begun
    assert all(asked.startswith(("0 0.6", "1 0.6", "2 0.6")) for asked in objective.asked)
    assert {iteration.samples for iteration in iterations} == {120}


def test_conjugate_gradient_restarts_where_patterns_are_drawn_and_says_so() -> None:
    vectors = TensorVectors(zeros())
    method = CGMethod(vectors, Patterns(vectors, fraction=0.6), cycle_iterations=3)
    restarts = [method.step().restart for _ in range(7)]
    assert [why == "a new sample set was drawn" for why in restarts] == [False] * 3 + [True] + [False] * 2 + [
        True
    ]


def test_lbfgs_keeps_its_pairs_over_a_draw_and_makes_none_across() -> None:
    """Every y is the difference of two gradients over one set."""
    vectors = TensorVectors(zeros())
    objective = Patterns(vectors, fraction=0.6)
    method = LBFGSMethod(vectors, objective, history_size=9, cycle_iterations=2)
    points = [zeros()]
    checked = 0
    for number in range(8):
        iteration = method.step()
        slots = method.state().values["slots"]
        assert isinstance(slots, list) and len(slots) == number + 1  # none was forgotten
        points.append(vectors["x"][0].clone())
        after, before = (
            objective.value(point, iteration.sample_set)[1] for point in (points[-1], points[-2])
        )
        assert torch.allclose(vectors[f"y{slots[-1]}"][0], after - before, atol=1e-12)
        checked += iteration.restart is None
    assert checked == 8


def test_an_evaluation_over_other_patterns_is_skipped_counted_and_the_method_goes_on() -> None:
    vectors = TensorVectors(zeros())
    objective = Patterns(vectors)
    method = LBFGSMethod(vectors, objective)
    for _ in range(3):
        method.step()
    method.flush()
    where = vectors["x"][0].clone()
    objective.lies = 1
    iteration = method.step()
    assert iteration.skipped is not None and "used samples 1 1.0, expected 0 1.0" in iteration.skipped
    assert iteration.step == 0 and iteration.failure is None and iteration.sample_set == "2 1.0"
    method.flush()
    assert torch.equal(vectors["x"][0], where)
    assert min(method.step().value for _ in range(30)) == pytest.approx(least(), rel=1e-9)


# trouble


def methods(vectors: TensorVectors, objective: Objective) -> list[Method]:
    return [LBFGSMethod(vectors, objective), CGMethod(vectors, objective)]


Function = Callable[[Tensor], tuple[float, Tensor]]


def steps(function: Function, start: Tensor, which: int, count: int) -> list[Iteration]:
    vectors = TensorVectors(start)

    def objective(point: Sequence[Tensor], gradient: Sequence[Tensor] | None) -> float:
        value, slope = function(point[0])
        if gradient is not None:
            gradient[0].copy_(slope)
        return value

    method = methods(vectors, FunctionObjective(vectors, objective))[which]
    found = [method.step() for _ in range(count)]
    method.flush()
    return found


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("bad", [(nan, 1.0), (inf, 1.0), (1.0, nan), (1.0, inf)])
def test_nan_at_the_point_itself_is_an_error_that_leaves_the_point(
    which: int, bad: tuple[float, float]
) -> None:
    start = torch.ones(3, dtype=torch.float64)
    with pytest.raises(DivergedError, match="at the current point"):
        steps(lambda x: (bad[0], torch.full_like(x, bad[1])), start, which, 1)
    assert start.tolist() == [1.0] * 3


@pytest.mark.parametrize("which", [0, 1])
def test_nan_further_away_is_stepped_around(which: int) -> None:
    def barrier(x: Tensor) -> tuple[float, Tensor]:  # −Σ log(1 − x²) − x: NaN outside of the box
        return float((-torch.log(1 - x * x) - x).sum()), 2 * x / (1 - x * x) - 1

    last = steps(barrier, torch.full((4,), -0.999, dtype=torch.float64), which, 30)[-1]
    assert last.value == pytest.approx(
        4 * (-0.41421356 - torch.log(torch.tensor(0.82842712)).item()), rel=1e-6
    )


@pytest.mark.parametrize("which", [0, 1])
def test_at_a_minimum_nothing_moves_and_it_is_said(which: int) -> None:
    start = torch.zeros(3, dtype=torch.float64)
    (first, second) = steps(lambda x: (float(x @ x), 2 * x), start, which, 2)
    assert first.failure == second.failure == "the gradient is zero" and first.step == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_gradient_ends_in_a_failed_search_that_is_told_and_the_point_stays(which: int) -> None:
    start = torch.ones(3, dtype=torch.float64)
    found = steps(lambda x: (float(x @ x), -2 * x), start, which, 2)
    assert [each.failure for each in found] == ["no step decreases the value enough"] * 2
    assert start.tolist() == [1.0] * 3 and found[0].evaluations > 1


@pytest.mark.parametrize("which", [0, 1])
def test_after_a_failed_search_steepest_descent_is_tried_and_the_reason_kept(which: int) -> None:
    """The gradient changes its sign for some evaluations in the middle."""
    calls = iter(range(10**6))

    def function(x: Tensor) -> tuple[float, Tensor]:
        scales = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
        value = float(scales @ (x * x))
        return (value + 1e6 if 12 <= next(calls) < 32 else value), 2 * scales * x

    found = steps(function, torch.ones(3, dtype=torch.float64), which, 30)
    assert any(each.restart == "no step decreases the value enough" for each in found)
    assert found[-1].value < 1e-8


@pytest.mark.parametrize("which", [0, 1])
def test_an_evaluation_that_raises_leaves_a_state_from_which_the_same_step_is_made(which: int) -> None:
    vectors, again = TensorVectors(zeros()), TensorVectors(zeros())
    broken, sound = Patterns(vectors), Patterns(again)
    method, other = methods(vectors, broken)[which], methods(again, sound)[which]
    for _ in range(4):
        method.step()
        other.step()
    right = broken.value

    def fails(point: Tensor, sample_set: str) -> tuple[float, Tensor]:
        raise RuntimeError("every worker is dead")

    broken.value = fails  # type: ignore[method-assign]  # what a cluster may do
    with pytest.raises(RuntimeError, match="every worker"):
        method.step()
    method.state()
    broken.value = right  # type: ignore[method-assign]  # on purpose
    assert method.step() == other.step()
    method.flush()
    other.flush()
    assert torch.equal(vectors["x"][0], again["x"][0])


def test_a_pair_without_curvature_is_skipped_and_counted() -> None:
    """Follow a line that bends downwards until a wall."""

    def function(x: Tensor) -> tuple[float, Tensor]:
        a = float(x[0])
        if a < 3:
            return -a - 0.01 * a * a, torch.tensor([-1 - 0.02 * a], dtype=torch.float64)
        return -3.09 + (a - 3) ** 2, torch.tensor([2 * (a - 3)], dtype=torch.float64)

    vectors = TensorVectors(torch.zeros(1, dtype=torch.float64))

    def objective(point: Sequence[Tensor], gradient: Sequence[Tensor] | None) -> float:
        value, slope = function(point[0])
        if gradient is not None:
            gradient[0].copy_(slope)
        return value

    short = StrongWolfe(longest=0.5)
    method = LBFGSMethod(vectors, FunctionObjective(vectors, objective), line_search=short)
    first = method.step()
    assert first.skipped is not None and "no pair: the curvature" in first.skipped
    assert min(method.step().value for _ in range(20)) == pytest.approx(-3.09, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda v, o: LBFGSMethod(v, o, history_size=0), "history_size must be at least 1, got 0"),
        (lambda v, o: CGMethod(v, o, beta=MISSPELT), "one of polak-ribiere"),
        (lambda v, o: CGMethod(v, o, cycle_iterations=0), "cycle_iterations must be .* got 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[..., Method], words: str) -> None:
    vectors = TensorVectors(zeros())
    with pytest.raises(ValueError, match=words):
        make(vectors, Patterns(vectors))


def test_a_vector_of_no_numbers_has_nothing_to_gain() -> None:
    vectors = TensorVectors(zeros(0))
    assert LBFGSMethod(vectors, Patterns(vectors)).step().failure == "the gradient is zero"
