"""What a strategy is to the runner that drives it.

Knows: the verbs that a runner calls. Does not know: files, clocks, the terminal, any one strategy.
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
    """Inputs, such as pictures ``(image, channel, y, x)``, images last, and their targets where there are
    any: labels ``(image,)``, or what a data set gives; ``weights`` ``(image,)`` of a data set that has
    them. Where a program's data set gives inputs of several parts, `batches.Inputs` stand in the place of the
    tensor."""

    inputs: Tensor
    targets: Tensor | None
    numbers: Sequence[int] | None = None
    """The numbers of the samples in the data set, if they are known."""
    weights: Tensor | None = None

    def on(self, device: torch.device) -> Batch:
        """The same on a device."""
        targets, weights = (
            None if each is None else each.to(device) for each in (self.targets, self.weights)
        )
        return Batch(self.inputs.to(device), targets, self.numbers, weights)


class Batches(Protocol):
    """An endless row of batches that knows its place and can go back to it."""

    @property
    def epoch_steps(self) -> float:
        """Batches in one epoch; samples that make no whole batch are a part of one."""
        ...

    @property
    def waited_seconds(self) -> float:
        """Seconds in which training waited for a batch."""
        ...

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the present place on."""
        ...

    def state_dict(self) -> dict[str, object]:
        """The place of the next batch, as JSON holds it."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go to a place that `state_dict` named."""
        ...


class Strategy(Protocol):
    """A way of training by mini-batches, as a row of phases."""

    @property
    def phases(self) -> Sequence[Phase]:
        """What is trained, one after the other."""
        ...

    @property
    def parameters(self) -> int:
        """How many weights the network has."""
        ...

    @property
    def flops(self) -> int:
        """FLOPs of a step for one sample in the phase at hand, by the network's plan: forward and gradient
        only, as the papers count."""
        ...

    def describe(self) -> Mapping[str, object]:
        """What the phase at hand trains, for the run's events; ``stack`` is its number or its name."""
        ...

    def enter(self, phase: int, step: int) -> None:
        """Stand before a step of a phase, counted from 0; the phase after the last is the end of all."""
        ...

    def begin(self, batches: Iterator[Batch]) -> None:
        """Prepare a phase before its first step; a batch that is drawn for that is the first step's, too."""
        ...

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Draw data, take one step; the objective is that of the state before the step."""
        ...

    def validate(self) -> Metrics | None:
        """The objective on validation data; None where there are none."""
        ...

    @property
    def is_best(self) -> bool:
        """Whether the last validation was the best so far, and so worth a checkpoint of its own."""
        ...

    @property
    def should_stop(self) -> bool:
        """Whether the phase may end before its last step."""
        ...

    def state_dict(self) -> StateDict:
        """Everything that a later process needs to go on from here with the same bits: live tensors, this
        rank's parts of tensors, tensors in files, plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Take over what is not live, from a `state_dict` whose tensors have been filled in place."""
        ...
