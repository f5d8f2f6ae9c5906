"""Learning rate over a run.

Knows: the number of a step, the number of steps, the peak rate. Does not know: the objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]
"""Learning rate after the warmup: constant, or a linear or cosine decay to 0."""


def rate_at(step: int, steps: int, rate: float, schedule: Schedule, warmup: float) -> float:
    """Return the learning rate of a step.

    The rate rises in equal steps to `rate` over the warmup. Then ``constant`` keeps it; ``linear`` and
    ``cosine`` let it fall and would reach 0 one step after the last. Every step of the run has a rate above
    0.

    Args:
        step: number of the step, from 0.
        steps: number of steps of the run.
        rate: peak learning rate.
        schedule: "constant", "linear" or "cosine".
        warmup: fraction of the run over which the rate rises.

    Returns:
        The learning rate of this step.

    Raises:
        ValueError: if `step` lies outside the run, or `schedule` is unknown.

    >>> [rate_at(step, 4, 1.0, "linear", 0.0) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    if not 0 <= step < steps:
        raise ValueError(f"step must be from 0 to {steps - 1}, got {step}")
    rising = round(warmup * steps)
    if step < rising:
        return rate * (step + 1) / (rising + 1)
    done = (step - rising) / (steps - rising)
    if schedule == "constant":
        return rate
    if schedule == "linear":
        return rate * (1 - done)
    if schedule == "cosine":
        return rate * cos(pi * done / 2) ** 2
    raise ValueError(f"schedule must be constant, linear or cosine; got {schedule!r}")


@dataclass(frozen=True)
class SampleSchedule:
    """Learning rate of asynchronous steps, by the position of their samples in the run.

    Many replicas take steps, so no process counts them. Position p of epoch e of N samples is the number e ·
    N + p, and positions are assigned in order. So the position of a push determines its rate, and a single
    replica has the rates of ordinary SGD.

    >>> schedule = SampleSchedule("linear", 0.0, samples=10, batch=5, epochs=2)
    >>> [schedule.rate(1.0, place) for place in (0, 5, 12, 19)]
    [1.0, 0.75, 0.5, 0.25]
    """

    schedule: Schedule = "constant"
    warmup: float = 0.0
    samples: int = 1
    """Samples per epoch."""
    batch: int = 1
    """Samples per step; the last step of an epoch may have fewer."""
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.epochs * self._epoch_steps

    @property
    def _epoch_steps(self) -> int:
        return -(-self.samples // self.batch)

    def rate(self, greatest: float, place: int) -> float:
        """Return the rate of a step by its first sample's position; beyond the run, that of the last step."""
        epoch, within = divmod(max(0, place), self.samples)
        step = min(epoch * self._epoch_steps + within // self.batch, self.steps - 1)
        return rate_at(step, self.steps, greatest, self.schedule, self.warmup)
