"""Works of workers in tests: sums small enough to check by hand, and some that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cotswold.errors import MachineError
from cotswold.shards.runtime.work import PortionSum, TensorSlot


class LeastSquares:
    """Half the squares of ``A x - b``, with a row of A as a sample."""

    def __init__(self, samples: int, size: int, seed: int, dtype: torch.dtype) -> None:
        rows = np.random.default_rng(seed).standard_normal((samples, size + 1))
        self._rows = torch.from_numpy(rows[:, :size]).to(dtype)
        self._goals = torch.from_numpy(rows[:, size]).to(dtype)
        self._parameters = torch.zeros(size, dtype=dtype)

    @property
    def parameters(self) -> Tensor:
        return self._parameters

    @property
    def layout(self) -> Sequence[TensorSlot]:
        return [TensorSlot("weight", len(self._parameters), 1)]

    @property
    def samples(self) -> int:
        return len(self._rows)

    @property
    def flops(self) -> tuple[int, int]:
        size = self._rows.shape[1]
        return 2 * size, 4 * size

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        chosen = torch.as_tensor(samples)
        rows = self._rows[chosen]
        errors = rows @ self._parameters - self._goals[chosen]
        if gradient is not None:
            gradient += rows.T @ errors
        value = 0.5 * float(errors.double().square().sum())
        return PortionSum(value, len(chosen), {"right": float((errors.abs() < 0.5).sum())})

    held_out = 100

    def validate(self, start: int, stop: int) -> PortionSum:
        """Validate: a sample's loss is its number times the squares of the parameters."""
        square = float(self._parameters.double().square().sum())
        return PortionSum(sum(range(start, stop)) * square, stop - start, {"accuracy": float(start)})


class Slow(LeastSquares):
    """Sleeps before each portion, for the seconds in a file that others may change."""

    def __init__(self, samples: int, size: int, seed: int, dtype: torch.dtype, seconds: float) -> None:
        super().__init__(samples, size, seed, dtype)
        self._seconds = seconds

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        time.sleep(self._seconds)
        return super().add(samples, gradient)


class Poisoned(LeastSquares):
    """Fails on one sample."""

    def __init__(self, samples: int, size: int, seed: int, dtype: torch.dtype, bad: int, nan: bool) -> None:
        super().__init__(samples, size, seed, dtype)
        self._bad, self._nan = bad, nan

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        if self._bad in samples and not self._nan:
            raise MachineError(f"sample {self._bad} cannot be read")
        if self._bad in samples and gradient is not None:
            gradient[0] += float("nan")
        return super().add(samples, gradient)


def least_squares(
    *, samples: int = 1000, size: int = 50, seed: int = 0, dtype: str = "float64", seconds: float = 0.0
) -> LeastSquares:
    """Return the work named ``"tests.support.replicas.works:least_squares"``."""
    if seconds:
        return Slow(samples, size, seed, getattr(torch, dtype), seconds)
    return LeastSquares(samples, size, seed, getattr(torch, dtype))


def poisoned(*, bad: int, nan: bool = False, samples: int = 1000, size: int = 50) -> LeastSquares:
    """Return a work in which one sample fails, or makes a gradient of NaN."""
    return Poisoned(samples, size, 0, torch.float64, bad, nan)


def once(*, marker: str, samples: int = 1000, size: int = 50) -> LeastSquares:
    """Return a work in the first process, and fail in later ones."""
    Path(marker).open("x").close()
    return LeastSquares(samples, size, 0, torch.float64)


class Regression(LeastSquares):
    """The mean of half the squares of a batch, for replicas; sleeps before each."""

    def __init__(self, samples: int, size: int, dtype: torch.dtype, seconds: float) -> None:
        super().__init__(samples, size, 0, dtype)
        self._goals = self._rows @ torch.linspace(-1, 1, size, dtype=dtype) + 0.01 * self._goals
        self._seconds = seconds

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        time.sleep(self._seconds)
        batch = torch.zeros_like(gradient)
        found = self.add(samples, batch)
        gradient += batch / len(samples)
        return found


class Fatal(Regression):
    """Fails on one sample."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        if 7 in samples:
            raise MachineError("sample 7 cannot be read")
        return super().compute(samples, gradient)


class Spoilt(Regression):
    """Makes a gradient that is not finite on one sample."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        if 7 in samples:
            gradient[0] += float("nan")
        return super().compute(samples, gradient)


def spoilt(*, samples: int = 1000, size: int = 20) -> Spoilt:
    """Return a work of replicas with one bad batch."""
    return Spoilt(samples, size, torch.float32, 0.0)


def is_first(marker: str) -> bool:
    """True if no process has asked with this marker, a file, before."""
    try:
        Path(marker).open("x").close()
    except FileExistsError:
        return False
    return True


class Hanging(Regression):
    """Hangs once in a step that is not its first, in one process of all."""

    marker = ""
    steps = 0

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        self.steps += 1
        if self.steps > 3 and is_first(self.marker):
            threading.Event().wait(60.0)
        return super().compute(samples, gradient)


def hanging(*, marker: str, samples: int = 1000, size: int = 20, seconds: float = 0.0) -> Hanging:
    """Return a work of replicas with one hanging step."""
    found = Hanging(samples, size, torch.float32, seconds)
    found.marker = marker
    return found


class Hungry(Regression):
    """Allocates more memory than exists."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        torch.empty(1 << 50)
        return super().compute(samples, gradient)


def hungry(*, samples: int = 1000, size: int = 20) -> Hungry:
    """Return a work that replicas cannot compute."""
    return Hungry(samples, size, torch.float32, 0.0)


class Tally:
    """Counts each sample in each of four tensors: a gradient of -1 at its number."""

    flops = (1, 1)

    def __init__(self, samples: int, seconds: float) -> None:
        self.parameters = torch.zeros(4 * samples)
        self.samples, self._seconds = samples, seconds

    @property
    def layout(self) -> Sequence[TensorSlot]:
        return [TensorSlot(f"tally {number}", self.samples, 1) for number in range(4)]

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        time.sleep(self._seconds)
        gradient.view(4, -1)[:, torch.as_tensor(samples)] -= 1
        return PortionSum(0.0, len(samples), {})


def tally(*, samples: int = 1000, seconds: float = 0.0, size: int = 0) -> Tally:
    """Return a work whose parameters, with a learning rate of 1, are the counts."""
    return Tally(samples, seconds)


def regression(
    *,
    samples: int = 1000,
    size: int = 20,
    dtype: str = "float32",
    seconds: float = 0.0,
    fatal: bool = False,
) -> Regression:
    """Return a work of replicas."""
    return (Fatal if fatal else Regression)(samples, size, getattr(torch, dtype), seconds)


class Evaluation:
    """Evaluates parameters by their sum."""

    def __init__(self, seconds: float, marker: str) -> None:
        self._seconds, self._marker, self._judged = seconds, marker, 0

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        self._judged += 1
        if self._judged > 1 and self._marker and is_first(self._marker):
            threading.Event().wait(60.0)
        time.sleep(self._seconds)
        return {"loss": float(parameters.double().sum())}


def evaluation(*, seconds: float = 0.0, marker: str = "") -> Evaluation:
    """Return the work of an evaluator; with a marker, one hangs in its second evaluation."""
    return Evaluation(seconds, marker)
