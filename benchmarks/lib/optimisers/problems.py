"""Smooth functions to minimise in float64: test functions, convex functions, networks, a differential
equation.

Knows: values and gradients at a vector. Does not know: methods, limits of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import pi
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["test", "convex", "network"]
"""Kind of comparison: networks by the loss after equal evaluations, others by evaluations to the minimum."""


@dataclass(frozen=True)
class Problem:
    """A function and its starting point."""

    name: str
    kind: Kind
    start: Tensor
    value: Callable[[Tensor], Tensor]

    def at(self, x: Tensor) -> tuple[float, Tensor]:
        """Return value and gradient."""
        point = x.detach().clone().requires_grad_()
        value = self.value(point)
        (gradient,) = torch.autograd.grad(value, point)
        return float(value.detach()), gradient


def rosenbrock(x: Tensor) -> Tensor:
    """A curved valley."""
    return torch.sum(100.0 * torch.square(x[1:] - x[:-1] ** 2) + torch.square(1.0 - x[:-1]))


def wood(x: Tensor) -> Tensor:
    """Function 14 of Moré, Garbow and Hillstrom 1981."""
    a, b, c, d = x.unbind()
    valleys = 100.0 * (b - a**2) ** 2 + (1.0 - a) ** 2 + 90.0 * (d - c**2) ** 2 + (1.0 - c) ** 2
    return valleys + 10.0 * (b + d - 2.0) ** 2 + 0.1 * (b - d) ** 2


def beale(x: Tensor) -> Tensor:
    """Function 5 of Moré, Garbow and Hillstrom 1981."""
    powers = torch.stack([x[1], x[1] ** 2, x[1] ** 3])
    return torch.sum(torch.square(torch.tensor([1.5, 2.25, 2.625], dtype=x.dtype) - x[0] * (1.0 - powers)))


def powell(x: Tensor) -> Tensor:
    """Powell's singular function, extended: the curvature vanishes at its minimum."""
    a, b, c, d = x.view(-1, 4).unbind(1)
    return ((a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4).sum()


def broyden(x: Tensor) -> Tensor:
    """Broyden's tridiagonal function."""
    padded = torch.nn.functional.pad(x, (1, 1))
    return (((3.0 - 2.0 * x) * x - padded[:-2] - 2.0 * padded[2:] + 1.0) ** 2).sum()


def quadratic(size: int, condition: float) -> Callable[[Tensor], Tensor]:
    """Return half x'Ax with eigenvalues spread evenly in logarithm."""
    generator = torch.Generator().manual_seed(size)
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    a = q @ torch.diag(torch.logspace(0, float(torch.log10(torch.tensor(condition))), size).double()) @ q.T
    return lambda x: 0.5 * x @ (a @ x)


def logistic(samples: int, features: int, spread: float, penalty: float) -> Callable[[Tensor], Tensor]:
    """Return logistic regression with a penalty on squares; features have scales 1 to ``spread``."""
    generator = torch.Generator().manual_seed(features)
    scales = torch.logspace(0, float(torch.log10(torch.tensor(spread))), features).double()
    inputs = torch.randn(samples, features, dtype=torch.float64, generator=generator) * scales
    truth = torch.randn(features, dtype=torch.float64, generator=generator) / scales
    noise = torch.randn(samples, dtype=torch.float64, generator=generator)
    signs = torch.sign(inputs @ truth + noise)
    return lambda w: torch.nn.functional.softplus(-signs * (inputs @ w)).mean() + penalty * w @ w / 2


@dataclass(frozen=True)
class Dense:
    """A fully connected tanh network as a function of one vector."""

    sizes: tuple[int, ...]

    @property
    def start(self) -> Tensor:
        """Return weights of variance one over the inputs, and biases of zero."""
        generator = torch.Generator().manual_seed(sum(self.sizes))
        parts = []
        for low, high in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            weights = torch.randn(low * high, dtype=torch.float64, generator=generator)
            parts += [weights / low**0.5, torch.zeros(high, dtype=torch.float64)]
        return torch.cat(parts)

    def layers(self, w: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases."""
        found, place = [], 0
        for low, high in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            weights, place = w[place : place + low * high].view(low, high), place + low * high
            found.append((weights, w[place : place + high]))
            place += high
        return found

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs; the last layer is linear."""
        layers = self.layers(w)
        for weights, bias in layers[:-1]:
            x = torch.tanh(x @ weights + bias)
        weights, bias = layers[-1]
        return x @ weights + bias


def regression() -> Problem:
    """Return a bumpy surface to fit by a network 2-16-1."""
    net, generator = Dense((2, 16, 1)), torch.Generator().manual_seed(1)
    x = torch.rand(200, 2, dtype=torch.float64, generator=generator) * 2 - 1
    y = torch.sin(pi * x[:, :1]) * torch.cos(pi * x[:, 1:])
    return Problem("network 2-16-1, squares", "network", net.start, lambda w: ((net(w, x) - y) ** 2).mean())


def classifier() -> Problem:
    """Return five overlapping classes for a network 10-12-5."""
    net, generator = Dense((10, 12, 5)), torch.Generator().manual_seed(2)
    labels = torch.arange(300) % 5
    centres = torch.randn(5, 10, dtype=torch.float64, generator=generator)
    x = centres[labels] + 1.2 * torch.randn(300, 10, dtype=torch.float64, generator=generator)
    loss = torch.nn.functional.cross_entropy

    def value(w: Tensor) -> Tensor:
        return loss(net(w, x), labels) + 1e-3 * w @ w / 2

    return Problem("network 10-12-5, cross entropy", "network", net.start, value)


def informed() -> Problem:
    """Return −u'' = π² sin(πx), u(0) = u(1) = 0 for a network 1-16-16-1; forward derivatives."""
    net = Dense((1, 16, 16, 1))
    x = torch.linspace(0, 1, 41, dtype=torch.float64)[:, None]
    source = pi**2 * torch.sin(pi * x)

    def value(w: Tensor) -> Tensor:
        u, first, second = x, torch.ones_like(x), torch.zeros_like(x)
        layers = net.layers(w)
        for weights, bias in layers[:-1]:
            u, first, second = torch.tanh(u @ weights + bias), first @ weights, second @ weights
            slope = 1 - u**2
            second = slope * second - 2 * u * slope * first**2
            first = slope * first
        weights, bias = layers[-1]
        u, second = u @ weights + bias, second @ weights
        return ((second + source) ** 2).mean() + 100 * (u[0] ** 2 + u[-1] ** 2).sum()

    return Problem("physics-informed network", "network", net.start, value)


@cache
def problems() -> tuple[Problem, ...]:
    """Return all problems, made once."""

    def full(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return (
        Problem("Rosenbrock, 10", "test", full([-1.2, 1.0] * 5), rosenbrock),
        Problem("Wood", "test", full([-3.0, -1.0, -3.0, -1.0]), wood),
        Problem("Beale", "test", full([1.0, 1.0]), beale),
        Problem("Powell, 12", "test", full([3.0, -1.0, 0.0, 1.0] * 3), powell),
        Problem("Broyden, 30", "test", full([-1.0] * 30), broyden),
        Problem("parabola, 50, condition 1e3", "convex", full([1.0] * 50), quadratic(50, 1e3)),
        Problem("logistic, 20 features", "convex", full([0.0] * 20), logistic(400, 20, 1.0, 1e-3)),
        Problem("logistic, scales 1 to 30", "convex", full([0.0] * 30), logistic(400, 30, 30.0, 1e-3)),
        regression(),
        classifier(),
        informed(),
    )
