"""Objectives for tests: a regression over random samples, with counted messages.

Knows: commands, sets of samples by name. Does not know: methods.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cotswold.optim import Command, Evaluation, TensorVectors


class CountedVectors(TensorVectors):
    """Vectors that count their rounds of commands."""

    rounds = 0

    def run(self, commands: Sequence[Command]) -> list[float]:
        self.rounds += 1
        return super().run(commands)


class Patterns:
    """Logistic regression over ``count`` samples; draws a fraction of them if no set is named.

    The name of a set is its seed and its fraction. ``asked`` lists the names of the counted evaluations in
    order.
    """

    def __init__(self, vectors: TensorVectors, fraction: float = 1.0, count: int = 200) -> None:
        generator = torch.Generator().manual_seed(7)
        features = vectors.size
        self._inputs = torch.randn(count, features, dtype=torch.float64, generator=generator)
        truth = torch.randn(features, dtype=torch.float64, generator=generator)
        noise = torch.randn(count, dtype=torch.float64, generator=generator)
        self._signs = torch.sign(self._inputs @ truth + noise)
        self._vectors, self._fraction, self._drawn = vectors, fraction, 0
        self.asked: list[str] = []
        self.lies = 0
        """Number of next evaluations that count another set than requested."""

    def part(self, sample_set: str, fraction: float) -> str:
        return f"{sample_set} {fraction}"

    def value(self, point: Tensor, sample_set: str) -> tuple[float, Tensor]:
        """Return the mean over a set, and its gradient."""
        seed, *fractions = sample_set.split()
        chosen = torch.randperm(len(self._signs), generator=torch.Generator().manual_seed(int(seed)))
        for fraction in fractions:
            chosen = chosen[: max(1, round(float(fraction) * len(chosen)))]
        w = point.detach().double().clone().requires_grad_()
        margins = self._signs[chosen] * (self._inputs[chosen] @ w)
        loss = torch.nn.functional.softplus(-margins).mean() + 0.005 * w @ w
        (slope,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), slope

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        self._vectors.run(before)
        if sample_set is None or (self.lies and " " in sample_set):
            self.lies = max(0, self.lies - 1) if sample_set else self.lies
            sample_set = f"{self._drawn} {self._fraction}"
            self._drawn += 1
        self.asked.append(sample_set)
        value, slope = self.value(self._vectors[at][0], sample_set)
        if gradient is not None:
            self._vectors.make(gradient)[0].copy_(slope)
        rounded = float(torch.tensor(value, dtype=self._vectors["x"][0].dtype))
        return Evaluation(rounded, tuple(self._vectors.run(after)), sample_set, round(200 * self._fraction))
