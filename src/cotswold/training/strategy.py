"""What a strategy is to the training loop.

Knows: the verbs that the loop calls. Does not know: files, clocks, the terminal, any one strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from cotswold.checkpoint import Checkpoint, Piece, SealedPiece


@dataclass(frozen=True)
class Batch:
    """Pictures ``(image, channel, y, x)``, images last, and their labels ``(image,)`` where there are any."""

    pictures: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class Measured:
    """What one step, or one validation, measured."""

    loss: float
    """The objective, mean over pictures."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Its parts and anything else worth a line: reconstruction, sparsity, alpha, accuracy."""


class Strategy(Protocol):
    """A way of training, as a row of phases (the stacks of `greedy`) of a known number of steps each."""

    @property
    def phases(self) -> int:
        """How many phases there are."""
        ...

    @property
    def improved(self) -> bool:
        """Whether the last validation was the best so far, and so worth a checkpoint of its own."""
        ...

    @property
    def parameters(self) -> int:
        """How many weights the network has."""
        ...

    def steps(self, phase: int) -> int:
        """How many steps a phase has at most."""
        ...

    def describe(self, phase: int) -> Mapping[str, object]:
        """What the phase trains, for the run's events; ``stack`` is its number or its name,
        ``steps_before`` the steps that it was trained for in earlier phases, if there were any."""
        ...

    def flops(self, phase: int) -> int:
        """FLOPs of a step for one picture: forward and gradient only, as the papers count."""
        ...

    def begin(self, phase: int, batch: Batch) -> None:
        """Prepare a phase that has not begun, on its first pictures (which are also its first step's)."""
        ...

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """One step; the objective is that of the state before the step."""
        ...

    def validate(self, phase: int) -> Measured | None:
        """The objective on held-out pictures; None where there are none."""
        ...

    def interval(self, phase: int) -> int:
        """Steps between validations."""
        ...

    def finished(self, phase: int) -> bool:
        """Whether the phase may end before its last step."""
        ...

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """Everything that a later process needs to go on with the same bits: the live tensors, to be read
        or filled."""
        ...

    def apart(self, phase: int, step: int) -> Iterable[Piece | SealedPiece]:
        """The same for what is in files, or of which this rank has a part."""
        ...

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        """Take up from a checkpoint what is in files, or of which this rank has a part."""
        ...

    def state(self) -> dict[str, object]:
        """The same for what is not a tensor; JSON."""
        ...

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Called once the live tensors have been filled from a checkpoint, with what `state` returned
        then."""
        ...
