"""Measurements of training, and their means between two events.

Knows: losses, samples, FLOPs, seconds, values that are not finite. Does not know: what is trained, how, where
events go.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

_FAR = 10.0
"""Ratio of the final to the initial loss from which the run ends with a warning."""
_LAST = 8
"""Number of last losses whose median is the final loss."""


@dataclass(frozen=True)
class Metrics:
    """Measurements of one step, one evaluation or one validation.

    Args:
        loss: the objective, mean over samples.
        samples: number of samples.
        details: parts of the loss and further figures by name.
        weight: weight of loss and details in means [samples].
        remedy: advice if the loss is not finite [the recorder's remedy].
    """

    loss: float
    """Objective, mean over samples."""
    samples: int
    """Number of samples."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Parts of the loss and further figures: reconstruction, sparsity, alpha, accuracy."""
    weight: float | None = None
    """Weight of loss and details in means: fewer samples if the loss leaves some out [all samples]."""
    remedy: str = ""
    """Advice if the loss is not finite [the recorder's remedy]."""

    @property
    def mean_weight(self) -> float:
        """Weight in means."""
        return self.samples if self.weight is None else self.weight


@dataclass(frozen=True)
class Means:
    """Means and rates since the last event."""

    count: int
    """Number of metrics in the means."""
    values: Mapping[str, float]
    """Loss and its details, rates, seconds; under their names in events."""


class _Mean:
    """A mean weighted by samples."""

    def __init__(self) -> None:
        self._total = self._weight = 0.0
        self._last = math.nan

    def add(self, value: float, weight: float) -> None:
        self._last = value
        self._total += value * weight
        self._weight += weight

    @property
    def value(self) -> float:
        """The mean; the newest value if the total weight is zero."""
        return self._total / self._weight if self._weight else self._last


class Meter:
    """Accumulates metrics and returns means."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waited = 0.0
        self._reset()

    def _reset(self) -> None:
        self._started = self._clock()
        self._count = self._samples = self._flops = 0
        self._loss = _Mean()
        self._details: dict[str, _Mean] = {}

    def restart(self, waited_seconds: float) -> None:
        """Discard all metrics; ``waited_seconds``: total time spent waiting for data so far."""
        self._waited = waited_seconds
        self._reset()

    def add(self, metrics: Metrics, flops: int) -> None:
        """Add a measurement; ``flops``: its total floating-point operations."""
        self._count += 1
        self._samples += metrics.samples
        self._flops += flops
        self._loss.add(metrics.loss, metrics.mean_weight)
        for name, value in metrics.details.items():
            self._details.setdefault(name, _Mean()).add(value, metrics.mean_weight)

    @property
    def seconds(self) -> float:
        """Seconds since the last call of `take`."""
        return self._clock() - self._started

    def take(self, waited_seconds: float) -> Means:
        """Return means over samples since the last call, and restart; at least one metric must exist."""
        seconds, count = max(self.seconds, 1e-9), self._count
        values = {
            "loss": self._loss.value,
            **{name: mean.value for name, mean in self._details.items()},
            "samples_per_second": self._samples / seconds,
            "gflops": self._flops / seconds / 1e9,
            "waited_seconds": waited_seconds - self._waited,
            "interval_seconds": seconds,
        }
        self.restart(waited_seconds)
        return Means(count, values)


class LossTrend:
    """The last losses of a phase, compared with its first."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_LAST)

    def add(self, loss: float) -> None:
        """Add the newest loss."""
        self._last.append(loss)

    def clear(self) -> None:
        """Discard all losses: the next ones are not comparable."""
        self._last.clear()

    def growth_from(self, first: float | None) -> str:
        """Return a sentence if the losses grew far above the first one, else an empty text."""
        if not first or first < 0 or not self._last:
            return ""
        last = median(self._last)
        return (
            f"the final loss {last:.3g} is far above the initial loss {first:.3g}"
            if last > _FAR * first
            else ""
        )


def kinds_not_finite(tensor: Tensor) -> set[str]:
    """Return the subset of ``inf`` and ``nan`` that a tensor contains."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return set()
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.itemsize == 1:
        tensor = tensor.float()  # torch cannot sum 8-bit floats
    if bool(torch.isfinite(tensor.sum())):
        return set()
    tests = {"inf": torch.isinf, "nan": torch.isnan}  # a sum of finite values may overflow
    return {name for name, test in tests.items() if bool(test(tensor).any())}
