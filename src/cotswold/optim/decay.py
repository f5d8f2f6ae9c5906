"""Weight decay: adds half the squared norm of the point to any objective.

Knows: commands, an objective. Does not know: what it computes, where vectors are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotswold.optim.objective import Evaluation, Objective
from cotswold.optim.vectors.base import Combine, Command, Dot


@dataclass(frozen=True)
class Decayed:
    """An objective with ½ λ x·x added to its value, and λ x to its gradient.

    Both are commands of the round that ends an evaluation, so they take no further round.

    Args:
        objective: the objective without weight decay.
        decay: λ.
    """

    objective: Objective
    decay: float
    """Factor λ."""

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        patterns: str | None = None,
    ) -> Evaluation:
        """Evaluate the objective and add the penalty.

        Args:
            at: name of the vector to evaluate at.
            gradient: name of the vector that receives the gradient; None for the value alone.
            before: commands to run first.
            after: commands to run last.
            patterns: name of the sample set of an earlier evaluation; see `Objective.evaluate`.

        Returns:
            The evaluation; its value includes `Evaluation.penalty`.
        """
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
        """Return the objective's subset.

        Args:
            patterns: name of the sample set of an earlier evaluation.
            fraction: approximate fraction of its samples.
        """
        return self.objective.part(patterns, fraction)
