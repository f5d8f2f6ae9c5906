"""Learners made by name in the processes of a test.

Knows: a small module, random data from a seed, ways to fail. Does not know: the tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn


class Line:
    """A linear layer and batch normalisation that learn a line."""

    def __init__(self, width: int = 3, samples: int = 64) -> None:
        numbers = torch.Generator().manual_seed(0)
        self.x = torch.randn(samples, width, generator=numbers)
        self.y = self.x.sum(1, keepdim=True)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.module = nn.Sequential(nn.Linear(width, 1), nn.BatchNorm1d(1))

    @property
    def samples(self) -> int:
        return len(self.x)

    def loss(self, numbers: Sequence[int]) -> Tensor:
        outputs: Tensor = self.module(self.x[numbers])
        return (outputs - self.y[numbers]).square().mean()


class Failing(Line):
    """A learner that ends in its third batch, by a signal or an error."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.left = how, 3

    def loss(self, numbers: Sequence[int]) -> Tensor:
        self.left -= 1
        if self.left == 0 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0:
            raise ArithmeticError("no third batch")
        return super().loss(numbers)


class Other(Line):
    """A learner that is wider in every process but the first."""

    def __init__(self, owner: int) -> None:
        super().__init__(width=3 if os.getpid() == owner else 4)


class Endless(Line):
    """A learner that reports its process and never ends."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def loss(self, numbers: Sequence[int]) -> Tensor:
        (self.folder / str(os.getpid())).touch()
        return super().loss(numbers)
