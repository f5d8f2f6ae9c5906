"""What is minimised: a value and a gradient at a vector, over patterns that are named.

Knows: what an optimiser asks and is told. Does not know: what computes it, how many processes that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cotswold.optim.vectors.base import Command


@dataclass(frozen=True)
class Evaluation:
    """What the coordinator sees of an evaluation."""

    value: float
    """The objective: a mean over the patterns that were counted."""
    dots: tuple[float, ...]
    """Those of the commands that were to run after it, in their order."""
    patterns: str
    """Names the set of patterns that was counted: two evaluations can be compared where it is the same."""
    samples: int
    """How many patterns were counted."""
    penalty: float = 0.0
    """What of the value does not come from the patterns: weight decay."""


class Objective(Protocol):
    """A function of a vector by name, whose gradient becomes a vector by name."""

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """The value at the vector ``at``, and its gradient into ``gradient`` unless that is None.

        ``before`` runs first, in the round that begins the evaluation (it makes ``at``); ``after`` runs in
        the round that ends it. ``patterns`` asks for the very set that an earlier evaluation counted; without
        it, the objective chooses one, and may end before all patterns are done. An evaluation that raises has
        run ``before`` and nothing of ``after``, or the vectors are lost as well.
        """
        ...

    def part(self, patterns: str, fraction: float) -> str:
        """Names about this fraction of the patterns of a set that an evaluation counted.

        The same arguments name the same patterns. An objective that cannot tell its patterns apart answers
        with the set itself. Bunyip's line search asks for the sign of a slope on such a part.
        """
        ...
