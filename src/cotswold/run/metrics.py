"""What training measures, and its means between two events.

Knows: losses, samples, FLOPs, seconds. Does not know: what is trained, how, where events go.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metrics:
    """What one step, one evaluation or one validation measured."""

    loss: float
    """The objective, mean over samples."""
    samples: int
    """How many samples it was measured on."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Its parts and anything else worth a line: reconstruction, sparsity, alpha, accuracy."""
    weight: float | None = None
    """The weight of loss and details in means: fewer samples if the loss leaves some out [all samples]."""
    remedy: str = ""
    """What to do if the loss is not finite [the recorder's remedy]."""

    @property
    def counted(self) -> float:
        """The weight in means."""
        return self.samples if self.weight is None else self.weight


@dataclass(frozen=True)
class Means:
    """Means and rates since the last event."""

    count: int
    """How many metrics the means are taken of."""
    values: Mapping[str, float]
    """The loss and its details, rates, seconds; under the names that events have for them."""


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
        """The mean; the newest value if nothing has a weight."""
        return self._total / self._weight if self._weight else self._last


class Meter:
    """Takes metrics, gives means."""

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
        """Forget what was added; ``waited_seconds`` is what was waited for data so far."""
        self._waited = waited_seconds
        self._reset()

    def add(self, metrics: Metrics, flops: int) -> None:
        """Count one of them, which took ``flops`` in all."""
        self._count += 1
        self._samples += metrics.samples
        self._flops += flops
        self._loss.add(metrics.loss, metrics.counted)
        for name, value in metrics.details.items():
            self._details.setdefault(name, _Mean()).add(value, metrics.counted)

    @property
    def seconds(self) -> float:
        """Seconds since the last means were taken."""
        return self._clock() - self._started

    def take(self, waited_seconds: float) -> Means:
        """Means over samples since this was last called; begins anew. At least one metric must be there."""
        seconds, count = max(self.seconds, 1e-9), self._count
        values = {
            "loss": self._loss.value,
            **{name: mean.value for name, mean in self._details.items()},
            "pictures_per_second": self._samples / seconds,
            "gflops": self._flops / seconds / 1e9,
            "waited_seconds": waited_seconds - self._waited,
            "interval_seconds": seconds,
        }
        self.restart(waited_seconds)
        return Means(count, values)
