"""Weight decay: half the squares of a point are added to whatever objective.

Knows: commands, an objective. Does not know: what it computes, where vectors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.optim.objective import Evaluation, Objective
from cotswold.optim.vectors.base import Combine, Command, Dot


@dataclass(frozen=True)
class Decayed:
    """An objective with ½ λ x·x added to its value, and λ x to its gradient.

    Both are commands of the round that ends an evaluation, so there is no other round for them.
    """

    objective: Objective
    decay: float
    """λ"""

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """As the objective; the value has the penalty in it, and names it."""
        decaying: list[Command] = [Dot(at, at)]
        if gradient is not None:
            decaying.append(Combine(gradient, ((1.0, gradient), (self.decay, at))))
        found = self.objective.evaluate(
            at, gradient, before=before, after=[*decaying, *after], patterns=patterns
        )
        square, *dots = found.dots
        penalty = 0.5 * self.decay * square
        return replace(found, value=found.value + penalty, dots=tuple(dots), penalty=penalty)

    def part(self, patterns: str, fraction: float) -> str:
        """That of the objective."""
        return self.objective.part(patterns, fraction)
