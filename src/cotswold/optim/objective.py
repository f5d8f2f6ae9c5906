"""The function to minimise: value and gradient at a vector, over a named sample set.

Knows: requests and results of evaluations. Does not know: who computes them, on how many processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cotswold.optim.vectors.base import Combine, Command, Dot


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation; the vectors stay where they are stored."""

    value: float
    """Objective: a mean over the evaluated samples."""
    dots: tuple[float, ...]
    """Results of the `Dot` commands in ``after``, in order."""
    sample_set: str
    """Name of the evaluated sample set: two evaluations can be compared if it is the same."""
    samples: int
    """Number of evaluated samples."""
    penalty: float = 0.0
    """Share of the value that does not come from samples: weight decay."""


class Objective(Protocol):
    """A function of a named vector; it writes its gradient into another named vector."""

    def evaluate(
        self,
        at: str,
        gradient: str | None,
        *,
        before: Sequence[Command] = (),
        after: Sequence[Command] = (),
        sample_set: str | None = None,
    ) -> Evaluation:
        """Compute the value at a vector, and its gradient.

        Args:
            at: name of the vector to evaluate at.
            gradient: name of the vector that receives the gradient; None for the value alone.
            before: commands to run first, in the round that starts the evaluation (they make `at`).
            after: commands to run in the round that ends the evaluation.
            sample_set: name of the set of an earlier evaluation, to evaluate the same samples. If None,
                the objective chooses a set and may end before all its samples are evaluated.

        Returns:
            The value, the dots of `after` and the sample set.

        If `evaluate` raises, it has run `before` and nothing of `after`, or the vectors are lost too.
        """
        ...

    def part(self, sample_set: str, fraction: float) -> str:
        """Return the name of a subset of an evaluated sample set.

        The same arguments always name the same samples. An objective that cannot subset its samples returns
        `sample_set`. Bunyip's line search evaluates the sign of a slope on such a subset.

        Args:
            sample_set: name of the sample set of an earlier evaluation.
            fraction: approximate fraction of its samples.
        """
        ...


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
        sample_set: str | None = None,
    ) -> Evaluation:
        """Evaluate the objective and add the penalty.

        Args:
            at: name of the vector to evaluate at.
            gradient: name of the vector that receives the gradient; None for the value alone.
            before: commands to run first.
            after: commands to run last.
            sample_set: name of the sample set of an earlier evaluation; see `Objective.evaluate`.

        Returns:
            The evaluation; its value includes `Evaluation.penalty`.
        """
        decaying: list[Command] = [Dot(at, at)]
        if gradient is not None:
            decaying.append(Combine(gradient, ((1.0, gradient), (self.decay, at))))
        found = self.objective.evaluate(
            at, gradient, before=before, after=[*decaying, *after], sample_set=sample_set
        )
        square, *dots = found.dots
        penalty = 0.5 * self.decay * square
        return replace(found, value=found.value + penalty, dots=tuple(dots), penalty=penalty)

    def part(self, sample_set: str, fraction: float) -> str:
        """Return the objective's subset.

        Args:
            sample_set: name of the sample set of an earlier evaluation.
            fraction: approximate fraction of its samples.
        """
        return self.objective.part(sample_set, fraction)
