"""A method of Cotswold or SciPy on a problem, with its evaluations counted in the same way.

Knows: evaluations, when a minimum is reached. Does not know: tables, the comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate

import numpy
import torch
from scipy import optimize
from torch import Tensor

from cotswold.optim import FunctionObjective, Method, TensorVectors
from lib.optimisers.problems import Problem

GRADIENT = 1e-5
"""Largest element of the gradient at a minimum: the threshold of SciPy's methods."""


class EnoughError(Exception):
    """The allowed evaluations are used up, or the minimum is reached."""


@dataclass
class Counted:
    """A problem that records its evaluations."""

    problem: Problem
    limit: int
    to_the_end: bool
    """Continue after a minimum is reached."""
    values: list[float] = field(default_factory=list)
    reached: int | None = None
    """Number of evaluations until the gradient was small."""

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """Return value and gradient; raise EnoughError before the first evaluation above the limit."""
        if len(self.values) >= self.limit:
            raise EnoughError
        value, gradient = self.problem.at(x)
        self.values.append(value)
        if self.reached is None and float(gradient.abs().max()) <= GRADIENT:
            self.reached = len(self.values)
            if not self.to_the_end:
                raise EnoughError
        return value, gradient

    @property
    def lowest(self) -> list[float]:
        """Lowest value after each evaluation."""
        return list(accumulate(self.values, min))


Minimiser = Callable[[Counted, Tensor], None]
Make = Callable[[TensorVectors, FunctionObjective], Method]


def ours(make: Make, iterations: int = 10_000) -> Minimiser:
    """Return a minimiser that steps a method of Cotswold until it fails to decrease."""

    def minimise(counted: Counted, start: Tensor) -> None:
        vectors = TensorVectors(start.clone())

        def function(point: Sequence[Tensor], gradient: Sequence[Tensor] | None) -> float:
            value, slope = counted(point[0])
            if gradient is not None:
                gradient[0].copy_(slope)
            return value

        method = make(vectors, FunctionObjective(vectors, function))
        for _ in range(iterations):
            if method.step().failure:
                return

    return minimise


def scipy(name: str) -> Minimiser:
    """Return a method of SciPy with its stopping rules disabled."""
    never = {"L-BFGS-B": {"ftol": 0.0, "gtol": 0.0, "maxcor": 10, "maxfun": 10**6}, "CG": {"gtol": 0.0}}[name]

    def minimise(counted: Counted, start: Tensor) -> None:
        def function(x: numpy.ndarray) -> tuple[float, numpy.ndarray]:
            value, gradient = counted(torch.from_numpy(x))
            return value, gradient.numpy()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {**never, "maxiter": 10**6}
            optimize.minimize(function, start.numpy(), jac=True, method=name, options=options)

    return minimise


def run(minimiser: Minimiser, problem: Problem, limit: int, seed: int) -> Counted:
    """Run from the problem's start, moved randomly by 1e-7; on networks use all evaluations."""
    generator = torch.Generator().manual_seed(seed)
    moved = 1e-7 * torch.randn(problem.start.shape, dtype=torch.float64, generator=generator)
    counted = Counted(problem, limit, to_the_end=problem.kind == "network")
    with suppress(EnoughError):
        minimiser(counted, problem.start + moved)
    return counted
