"""How the step size changes over a run.

Knows: a step's number, how many steps there are, the greatest rate. Does not know: what is minimised.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def rate_at(step: int, steps: int, rate: float, schedule: Schedule, warmup: float) -> float:
    """The rate of ``step``, counted from 0, in a run of ``steps``.

    Over the first ``warmup`` (a fraction) of the run it rises in equal steps towards ``rate``; from there
    ``constant`` stays, ``linear`` and ``cosine`` fall to what would be 0 one step after the last. Every step
    of the run has a rate above 0. Raises ValueError for a step outside the run or an unknown schedule.

    >>> [rate_at(step, 4, 1.0, "linear", 0.0) for step in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} lies outside a run of {steps} steps")
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
    raise ValueError(f"unknown schedule {schedule!r}; known are constant, linear and cosine")


@dataclass(frozen=True)
class BySamples:
    """The rate of steps that nobody counts, because many take them: by where their samples stand in the run.

    Place p of epoch e of N samples is the number e · N + p, and places are handed out in their order. So
    whoever has a push knows its rate, and one replica alone has the rates of ordinary SGD.

    >>> schedule = BySamples("linear", 0.0, samples=10, batch=5, epochs=2)
    >>> [schedule.rate(1.0, place) for place in (0, 5, 12, 19)]
    [1.0, 0.75, 0.5, 0.25]
    """

    schedule: Schedule = "constant"
    warmup: float = 0.0
    samples: int = 1
    """Of an epoch."""
    batch: int = 1
    """Samples of a step; the last of an epoch may have fewer."""
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Of the run."""
        return self.epochs * self._epoch_steps

    @property
    def _epoch_steps(self) -> int:
        return -(-self.samples // self.batch)

    def rate(self, greatest: float, place: int) -> float:
        """That of a step whose first sample has this place; beyond the run, that of the last step."""
        epoch, within = divmod(max(0, place), self.samples)
        step = min(epoch * self._epoch_steps + within // self.batch, self.steps - 1)
        return rate_at(step, self.steps, greatest, self.schedule, self.warmup)
