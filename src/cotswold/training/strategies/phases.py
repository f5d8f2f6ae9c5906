"""The phases of a run: stretches of training, each with a schedule of its own.

Knows: which parts of a network have how many steps, one after the other, prolongations included. Does not
know: how a part is trained.

A strategy has parts that are trained one after the other (the stacks of `greedy`) or one that is all of it.
Each part has a phase; a run that is prolonged has further phases for the epochs that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Epochs = tuple[float, ...]
"""Epochs of every part."""


@dataclass(frozen=True)
class Phase:
    """One stretch of training."""

    part: int
    """Which part of the strategy it trains, from 0."""
    steps: int | None
    """How many steps it has at most; None for an open end."""
    validate_every: int | None
    """Steps between validations; None for only those before and after."""
    prolongation: int = 0
    """In which prolongation of the run; 0 for the training that its recipe asks for."""
    steps_before: int = 0
    """Steps that earlier phases take of the same part; its curves go on from there."""

    def place(self) -> dict[str, int]:
        """What events say of a phase that belongs to a prolongation."""
        if self.prolongation == 0:
            return {}
        return {"prolongation": self.prolongation, "steps_before": self.steps_before}


def planned(
    epochs: Sequence[Epochs], steps: Callable[[float], int], validate_every: Callable[[int], int]
) -> list[Phase]:
    """One phase a part for the first epochs, and for each prolongation one for each part that has some.

    ``steps``: of so many epochs; ``validate_every``: of a phase of so many steps.
    """
    phases: list[Phase] = []
    for prolongation, amounts in enumerate(epochs):
        for part, amount in enumerate(amounts):
            if amount > 0 or prolongation == 0:
                count = steps(amount)
                before = sum(phase.steps or 0 for phase in phases if phase.part == part)
                phases.append(Phase(part, count, validate_every(count), prolongation, before))
    return phases
