"""The interface between a strategy and its trainer.

Knows: the methods that a trainer calls. Does not know: files, clocks, the terminal, any one strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cotswold.checkpoint import StateDict, StateValue
from cotswold.run import Metrics
from cotswold.training.strategies.phases import Phase


@dataclass(frozen=True)
class Batch:
    """Inputs, such as images ``(image, channel, y, x)``, and their targets.

    ``targets`` are labels ``(image,)`` or the values of a data set, None for unlabelled data. ``weights``
    ``(image,)`` are None if the data set has none. If a user's data set has inputs of several parts,
    ``inputs`` is a `batches.Inputs` instead of a tensor.
    """

    inputs: Tensor
    targets: Tensor | None
    numbers: Sequence[int] | None = None
    """The indices of the samples in the data set, if known."""
    weights: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch on a device."""
        targets, weights = (
            None if each is None else each.to(device) for each in (self.targets, self.weights)
        )
        return Batch(self.inputs.to(device), targets, self.numbers, weights)


class Batches(Protocol):
    """An endless iterator over batches that can save and restore its position."""

    @property
    def epoch_steps(self) -> float:
        """Batches per epoch; an incomplete batch counts as a fraction."""
        ...

    @property
    def waited_seconds(self) -> float:
        """Seconds that training waited for batches."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from the present position."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the position of the next batch as JSON-compatible values."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Move to a position returned by `state_dict`."""
        ...


class Strategy(Protocol):
    """A method of training by mini-batches, in consecutive phases."""

    @property
    def phases(self) -> Sequence[Phase]:
        """The phases of the training, in order."""
        ...

    @property
    def parameters(self) -> int:
        """The number of weights of the network."""
        ...

    @property
    def flops(self) -> int:
        """FLOPs per sample of a step in the current phase, from the network's plan.

        Counts the forward pass and the gradients only, as the papers do.
        """
        ...

    def describe(self) -> Mapping[str, object]:
        """Describe the current phase for the run's events; ``stack`` is its number or name."""
        ...

    def enter(self, phase: int, step: int) -> None:
        """Move to a step of a phase, both counted from 0; the phase after the last means the end."""
        ...

    def begin(self, batches: Iterator[Batch]) -> None:
        """Prepare a phase before its first step, which uses any batch drawn here."""
        ...

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Draw data and take one step; the objective returned is that before the step."""
        ...

    def validate(self) -> Metrics | None:
        """Return the objective on validation data; None without such data."""
        ...

    @property
    def is_best(self) -> bool:
        """True if the last validation was the best so far, so that the state deserves a checkpoint."""
        ...

    @property
    def should_stop(self) -> bool:
        """True if the phase may end before its last step."""
        ...

    def state_dict(self) -> StateDict:
        """Return all state that a later process needs to continue bit by bit.

        Values are live tensors, this rank's parts of tensors, tensors in files, or plain values.
        """
        ...

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Restore the plain values of a `state_dict`, whose live tensors have been filled in place."""
        ...
