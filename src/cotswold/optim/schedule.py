"""How the step size changes over a run.

Knows: a step's number, how many steps there are, the greatest rate. Does not know: what is minimised.
"""

from __future__ import annotations

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
