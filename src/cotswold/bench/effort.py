"""The effort of measurements of kernels.

Knows: rounds, seconds, sizes. Does not know: what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.bench.measure import Rounds


@dataclass(frozen=True)
class Effort:
    """Rounds, and the size of the dense product that is the peak."""

    rounds: Rounds = Rounds(max_rounds=7, min_rounds=3, seconds=2.0, slow_seconds=1.5)  # noqa: RUF009
    dense_size: int = 2048
    process_starts: int = 3
    """New processes for each way of a first use."""


QUICK_EFFORT = Effort(
    Rounds(max_rounds=3, min_rounds=2, seconds=0.5, slow_seconds=0.5), dense_size=384, process_starts=1
)
