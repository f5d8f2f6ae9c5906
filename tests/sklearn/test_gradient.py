from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cotswold.optim import Combine, Command, Dot, Drop, Multiply, TensorVectors
from cotswold.sklearn.fast_vectors import FastVectors
from cotswold.sklearn.gradient import NetworkGradient
from cotswold.sklearn.network import ACTIVATIONS, make_network
from cotswold.sklearn.samples import (
    WeightedSamples,
    half_squared_error,
    logistic,
    weighted_cross_entropy,
    weighted_half_squared_error,
    weighted_logistic,
)

Loss = Callable[[Tensor, Tensor], Tensor]
RANDOM = np.random.RandomState(4)
CLASSES, VALUES = RANDOM.randint(0, 3, 13), RANDOM.normal(size=(13, 3))
WEIGHTS = RANDOM.uniform(0.5, 2.0, 13)
LOSSES: dict[str, tuple[Loss, int, NDArray[Any], NDArray[np.float64] | None]] = {
    "logistic": (logistic, 1, CLASSES % 2, None),
    "cross-entropy": (functional.cross_entropy, 3, CLASSES, None),
    "squared error": (half_squared_error, 3, VALUES, None),
    "weighted logistic": (weighted_logistic, 1, CLASSES % 2, WEIGHTS),
    "weighted cross-entropy": (weighted_cross_entropy, 3, CLASSES, WEIGHTS),
    "weighted squared error": (weighted_half_squared_error, 3, VALUES, WEIGHTS),
}


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_autograd(name: str, activation: str, hidden: tuple[int, ...]) -> None:
    loss, outputs, targets, weights = LOSSES[name]
    network = make_network((4, *hidden, outputs), activation, torch.float64, np.random.RandomState(1))
    inputs = np.random.RandomState(2).normal(size=(13, 4))
    samples = WeightedSamples.of(inputs, targets, weights, torch.float64)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradient = NetworkGradient(network, loss)
    parts = [(samples.part(0, 8), 8 / 13), (samples.part(8, 13), 5 / 13), (samples.part(0, 8), 0.5)]
    found = sum(float(gradient.add(part, share)) for part, share in parts)
    got = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    wanted = torch.stack([loss(network(part.inputs), part.targets) * share for part, share in parts]).sum()
    wanted.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert found == pytest.approx(float(wanted.detach()), rel=1e-13)
    for own, parameter in zip(got, network.parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-11, atol=1e-14)


def test_fast_vectors_run_the_commands_of_a_method() -> None:
    given = torch.randn(37, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    plain, fast = TensorVectors(given.clone()), FastVectors(given)
    rounds: list[list[Command]] = [
        [Combine(f"v{number}", ((0.3 * number - 1.0, "x"),)) for number in range(12)],
        [Combine("v3", ((1.0, "v3"), (0.25, "x"))), Combine("v4", ()), Combine("v5", ((2.0, "v5"),))],
        [Multiply("m", "v3", "v7"), Combine("x", ((1.0, "x"), (-0.5, "m"), (0.125, "x")))],
        [Combine("x", ((1.0, "x"), (0.5, "x"))), Drop("v4"), Drop("nobody")],
        [Dot("x", "m"), Combine("m", ((1.0, "m"), (3.0, "v1"))), Dot("m", "m"), Dot("m", "x")],
        [Dot(f"v{number}", name) for number in (0, 1, 2, 3, 5) for name in ("x", "m")],
    ]
    for commands in rounds:
        assert fast.run(commands) == pytest.approx(plain.run(commands), rel=1e-12)
    for name in plain.names:
        torch.testing.assert_close(fast[name], plain[name], rtol=1e-12, atol=1e-14)


def test_what_no_dot_asks_for_may_be_infinite() -> None:
    vectors = FastVectors(torch.ones(5))
    vectors.make("y")[0].fill_(float("inf"))
    vectors.make("z")[0].fill_(2.0)
    assert vectors.run([Dot("x", "z")] * 3 + [Dot("z", "z"), Dot("x", "x")]) == [10.0] * 3 + [20.0, 5.0]
    with pytest.raises(KeyError):
        vectors.run([Drop("z"), Dot("x", "z")])


def test_a_dropped_vector_can_be_made_again() -> None:
    vectors = FastVectors(torch.ones(3))
    vectors.run([Combine("y", ((2.0, "x"),)), Drop("y")])
    assert vectors.make("y")[0].tolist() == [0.0] * 3
