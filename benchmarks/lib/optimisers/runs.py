"""A method on a problem, ours or SciPy's, with its evaluations counted alike.

Knows: evaluations, when a minimum is reached. Does not know: tables, which figure is asked for.
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
"""A minimum is reached where no part of the gradient is larger: the threshold of SciPy's methods."""


class EnoughError(Exception):
    """The evaluations that were allowed are used up, or the minimum is reached."""


@dataclass
class Counted:
    """A problem that writes down what it was asked."""

    problem: Problem
    limit: int
    to_the_end: bool
    """Go on when a minimum is reached."""
    values: list[float] = field(default_factory=list)
    reached: int | None = None
    """After how many evaluations the gradient was small."""

    def __call__(self, x: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; raises EnoughError before the first evaluation too many."""
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
        """The lowest value after each evaluation."""
        return list(accumulate(self.values, min))


Minimiser = Callable[[Counted, Tensor], None]
Make = Callable[[TensorVectors, FunctionObjective], Method]


def ours(make: Make, iterations: int = 10_000) -> Minimiser:
    """One of our methods, until nothing more is gained."""

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
    """SciPy's, asked never to stop of itself."""
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
    """From the problem's start moved by 1e-7, as ``seed`` says; on networks all evaluations are used."""
    generator = torch.Generator().manual_seed(seed)
    moved = 1e-7 * torch.randn(problem.start.shape, dtype=torch.float64, generator=generator)
    counted = Counted(problem, limit, to_the_end=problem.kind == "network")
    with suppress(EnoughError):
        minimiser(counted, problem.start + moved)
    return counted
