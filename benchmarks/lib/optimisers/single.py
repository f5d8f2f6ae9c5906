"""Line searches in float32, where rounding hides the last decreases of a loss.

Knows: methods in float32, the distance to the minimum. Does not know: SciPy, where figures are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from cotswold.optim import ApproximateWolfe, CGMethod, LBFGSMethod, RoundedWolfe, Search, StrongWolfe
from lib.optimisers.problems import Problem, rosenbrock, wood
from lib.optimisers.runs import Counted, EnoughError, Make, ours

BUDGET = 300
"""Evaluations allowed per run."""
NEAR = 1e-6
"""Fraction of the initial excess over the minimum that counts as converged."""
MOVED = 1e-4
"""Random distance of starts: float32 would round 1e-7 away."""
_REFERENCE = 3000
_PENALTY = 1e-3


@dataclass(frozen=True)
class SingleRow:
    """A method with a search on a problem; medians over the starts."""

    problem: str
    method: str
    search: str
    evaluations: float | None
    """Evaluations until the excess is `NEAR` of the initial one, or None if most starts did not converge."""
    excess: float
    """Final excess over the minimum in float64."""


def single_problems() -> list[Problem]:
    """Return two test functions and three standardised sets of scikit-learn with a penalty on squares."""
    from sklearn import datasets

    def data(name: str) -> tuple[Tensor, Tensor]:
        x, y = (torch.from_numpy(each) for each in getattr(datasets, f"load_{name}")(return_X_y=True))
        return (x - x.mean(0)) / x.std(0), y

    sugar, diabetes = data("diabetes")
    cells, cancer = data("breast_cancer")
    cask, wine = data("wine")

    def squares(w: Tensor) -> Tensor:
        errors = sugar.to(w) @ w[1:] + w[0] - diabetes.to(w)
        return errors.square().mean() / 2 + _PENALTY * w @ w / 2

    def logistic(w: Tensor) -> Tensor:
        scores = (2 * cancer.to(w) - 1) * (cells.to(w) @ w[1:] + w[0])
        return softplus(-scores).mean() + _PENALTY * w @ w / 2

    def softmax(w: Tensor) -> Tensor:
        of_classes = w.view(3, -1)
        scores = cask.to(w) @ of_classes[:, 1:].T + of_classes[:, 0]
        return cross_entropy(scores, wine.long()) + _PENALTY * w @ w / 2

    def zeros(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)

    return [
        Problem("Rosenbrock, 10", "test", torch.tensor([-1.2, 1.0] * 5, dtype=torch.float64), rosenbrock),
        Problem("Wood", "test", torch.tensor([-3.0, -1.0, -3.0, -1.0], dtype=torch.float64), wood),
        Problem("diabetes, least squares", "convex", zeros(11), squares),
        Problem("breast cancer, logistic", "convex", zeros(31), logistic),
        Problem("wine, softmax", "convex", zeros(42), softmax),
    ]


@dataclass
class _Exact(Counted):
    """A problem evaluated in float32 that records the float64 values at the same points."""

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        if len(self.values) >= self.limit:
            raise EnoughError
        self.values.append(float(self.problem.value(x.detach().double())))
        return self.problem.at(x)


def _searches(curvature: float) -> dict[str, Search]:
    strong, approximate = StrongWolfe(curvature=curvature), ApproximateWolfe(curvature=curvature)
    return {
        "strong Wolfe": strong,
        "approximate Wolfe": approximate,
        "RoundedWolfe": RoundedWolfe(strong, approximate),
    }


def _lbfgs(search: Search) -> Make:
    return lambda vectors, objective: LBFGSMethod(vectors, objective, line_search=search)


def _cg(search: Search) -> Make:
    return lambda vectors, objective: CGMethod(vectors, objective, line_search=search)


def _methods() -> dict[tuple[str, str], Make]:
    lbfgs = {("L-BFGS", name): _lbfgs(search) for name, search in _searches(0.9).items()}
    cg = {("conjugate gradient", name): _cg(search) for name, search in _searches(0.4).items()}
    return {**lbfgs, **cg}


def singles(problem: Problem, starts: int, say: Callable[[str], None]) -> list[SingleRow]:
    """Return the rows of a problem."""
    least = _least(problem)
    rows = []
    for (method, search), make in _methods().items():
        counts, left = [], []
        for seed in range(starts):
            generator = torch.Generator().manual_seed(seed)
            moved = MOVED * torch.randn(problem.start.shape, dtype=torch.float64, generator=generator)
            counted = _Exact(problem, BUDGET, to_the_end=True)
            with suppress(EnoughError):
                ours(make, BUDGET)(counted, (problem.start + moved).float())
            excess = [each - least for each in counted.lowest]
            near = next((at for at, each in enumerate(excess, 1) if each <= NEAR * excess[0]), None)
            counts.append(float("inf") if near is None else float(near))
            left.append(excess[-1])
        count = median(counts)
        row = SingleRow(problem.name, method, search, None if count == float("inf") else count, median(left))
        rows.append(row)
        told = "not reached" if row.evaluations is None else f"{row.evaluations:.0f} evaluations"
        say(f"{row.problem:<26} {method:<20} {search:<18} {told:>16}   {row.excess:.2g} left")
    return rows


def _least(problem: Problem) -> float:
    counted = Counted(problem, _REFERENCE, to_the_end=True)
    with suppress(EnoughError):
        ours(lambda v, f: LBFGSMethod(v, f, line_search=ApproximateWolfe()))(counted, problem.start.clone())
    return min(counted.values)
