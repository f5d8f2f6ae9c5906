"""The phases of a run: stretches of training, each with its schedule.

Knows: the steps of each part of a network, in order, including extensions. Does not know: how a part is
trained.

A strategy has parts that are trained one after another (the stacks of `greedy`), or a single part. Each part
has one phase; extending a run adds phases for the missing epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Epochs = tuple[float, ...]
"""Epochs for each part."""


@dataclass(frozen=True)
class Phase:
    """One stretch of training."""

    part: int
    """The index of the strategy's part that the phase trains, from 0."""
    steps: int | None
    """The maximum number of steps; None for no limit."""
    validate_every: int | None
    """Steps between validations; None validates only before and after the phase."""
    extension: int = 0
    """The index of the extension of the run; 0 for the recipe's training."""
    steps_before: int = 0
    """Steps of earlier phases on the same part; its curves continue from there."""
    counts_from_start: bool = False
    """True if validations follow the steps of the run, not of the phase: they are the ends of its epochs."""

    def place(self) -> dict[str, int]:
        """Return the event fields of a phase that extends a run; empty for the others."""
        if self.extension == 0:
            return {}
        return {"extension": self.extension, "steps_before": self.steps_before}


def planned(
    epochs: Sequence[Epochs], steps: Callable[[float], int], validate_every: Callable[[int], int]
) -> list[Phase]:
    """Return one phase per part for the first epochs, and for each extension one per part with epochs.

    ``steps`` converts epochs to steps; ``validate_every`` gives the validation interval for a number of
    steps.
    """
    phases: list[Phase] = []
    for extension, amounts in enumerate(epochs):
        for part, amount in enumerate(amounts):
            if amount > 0 or extension == 0:
                count = steps(amount)
                before = sum(phase.steps or 0 for phase in phases if phase.part == part)
                phases.append(Phase(part, count, validate_every(count), extension, before))
    return phases
