"""Convergence of a method: at rounding level, and not before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.optim.objectives import Patterns
from torch import Tensor

from cotswold.optim import CGMethod, Convergence, FunctionObjective, Iteration, LBFGSMethod, TensorVectors

Value = Callable[[Tensor], Tensor]
METHODS = {"lbfgs": LBFGSMethod, "cg": CGMethod}
STALL = 10
STILL = Iteration(1, 1.0, 1e-3, 0.1, 1, 0, "all", 1)


def valley(x: Tensor) -> Tensor:
    """Return Rosenbrock's function, high above 0, where float32 shows none of its last bends."""
    return 1e3 + (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def trough(x: Tensor) -> Tensor:
    """Return a parabola of condition 1e6, above 1: an iteration gains less than its rounding in float32."""
    curvatures = torch.logspace(0, -6, len(x), dtype=torch.float64).to(x.dtype)
    return 1 + 0.5 * (curvatures * (x - 1) ** 2).sum()


PROBLEMS: dict[str, tuple[Value, list[float]]] = {
    "valley": (valley, [-1.2, 1.0] * 5),
    "long valley": (valley, [-1.2, 1.0] * 30),
    "trough": (trough, [0.0] * 50),
}


def objective(vectors: TensorVectors, value: Value) -> FunctionObjective:
    def function(parts: object, gradient: object) -> float:
        x = parts[0].detach().clone().requires_grad_()  # type: ignore[index]  # parts of a vector
        found = value(x)
        if gradient is not None:
            gradient[0].copy_(torch.autograd.grad(found, x)[0])  # type: ignore[index]  # parts of a vector
        return float(found.detach())

    return FunctionObjective(vectors, function)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_no_slow_valley_is_taken_for_the_end(name: str, dtype: torch.dtype, problem: str) -> None:
    value, start = PROBLEMS[problem]
    vectors = TensorVectors(torch.tensor(start, dtype=dtype))
    method = METHODS[name](vectors, objective(vectors, value))
    rule, at = Convergence(vectors.epsilon, STALL), None
    values: list[float] = []
    for _ in range(500):
        found = method.step()
        rule.update(found)
        values.append(value(vectors["x"][0].double()).item())  # where it stands, without float32's rounding
        at = len(values) if at is None and rule.is_converged else at
        if found.failure is not None:
            break
    method.flush()
    # all that came later gained no more than the value's rounding
    assert at is None or values[at - 1] - min(values) <= vectors.epsilon * values[-1]


@pytest.mark.parametrize("name", METHODS)
def test_at_rounding_level_it_has_converged(name: str) -> None:
    vectors = TensorVectors(torch.zeros(8))
    method = METHODS[name](vectors, Patterns(vectors))
    rule = Convergence(vectors.epsilon, STALL)
    values: list[float] = []
    while not rule.is_converged and len(values) < 200:
        found = method.step()
        rule.update(found)
        values.append(found.value)
    exact = TensorVectors(torch.zeros(8, dtype=torch.float64))
    sought = LBFGSMethod(exact, Patterns(exact))
    least = min(sought.step().value for _ in range(40))
    assert len(values) < 100
    assert values[-1] == pytest.approx(least, rel=3e-7)


@pytest.mark.parametrize(
    "progress",
    [
        lambda number: {"value": 1.0 - 2e-7 * number},
        lambda number: {"gradient_norm": 1e-3 / (number + 2)},
        lambda number: {"predicted_decrease": 1e-9},
    ],
)
def test_each_kind_of_progress_is_enough(progress: Callable[[int], dict[str, float]]) -> None:
    rule, other = Convergence(2.0**-23, STALL), Convergence(2.0**-23, STALL)
    for number in range(60):
        rule.update(replace(STILL, **progress(number)))  # type: ignore[arg-type]  # names of floats alone
        other.update(STILL)
    assert not rule.is_converged and other.is_converged


def test_promises_that_take_each_other_back_are_none() -> None:
    rule = Convergence(2.0**-23, STALL)
    for number in range(60):
        rule.update(replace(STILL, predicted_decrease=1e-10 * (-1) ** number))
    assert rule.is_converged


def test_0_iterations_never_converge() -> None:
    rule = Convergence(2.0**-23, 0)
    for _ in range(1000):
        rule.update(STILL)
    assert not rule.is_converged


def test_a_later_process_counts_on() -> None:
    rule, later = Convergence(2.0**-23, STALL), Convergence(2.0**-23, STALL)
    for _ in range(6):
        rule.update(STILL)
    later.load(json.loads(json.dumps(rule.state())))
    for _ in range(5):
        assert not later.is_converged
        later.update(STILL)
    assert later.is_converged
