"""The interface between a strategy and its trainer.

Knows: the methods that a trainer calls. Does not know: files, clocks, the terminal, any one strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from cotswold.checkpoint import StateDict, StateValue
from cotswold.run import Metrics as Metrics
from cotswold.training.strategies.phases import Phase


@dataclass(frozen=True)
class Share:
    """The place of a replica among those that divide each batch; see `replicated`."""

    index: int
    count: int

    def bounds(self, samples: int) -> tuple[int, int]:
        """Return the first sample of this replica's part of a batch, and its end; parts differ by at most 1.

        The part of a batch with fewer samples than replicas may be empty.

        >>> [Share(index, 3).bounds(4) for index in range(3)]
        [(0, 2), (2, 3), (3, 4)]
        """
        return -(-self.index * samples // self.count), -(-(self.index + 1) * samples // self.count)


WHOLE = Share(0, 1)
"""The share of a run without replicas."""


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
    is_idle: bool = False
    """True if this replica's part is empty. Then the batch has one sample of another replica, which takes the
    place of the part where all replicas must compute; its results do not count.
    """

    def to(self, device: torch.device) -> Batch:
        """Return a copy of the batch on a device."""
        targets, weights = (
            None if each is None else each.to(device) for each in (self.targets, self.weights)
        )
        return replace(self, inputs=self.inputs.to(device), targets=targets, weights=weights)


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
        """Move to a position.

        Args:
            state: A position that `state_dict` returned.
        """
        ...


if TYPE_CHECKING:
    _property = property
else:

    class _property:  # noqa: N801  # used like `property`
        """A property that an instance of a subclass may also assign."""

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function, self.__doc__ = function, function.__doc__

        def __get__(self, instance: object, owner: type) -> Any:
            return self if instance is None else self._function(instance)


class Strategy(Protocol):
    """Base class of strategies: a method of training by mini-batches, in consecutive phases.

    `SyncTrainer` calls these methods, and counts, records and saves. A class that has all of them need not
    derive from this one. A subclass may assign ``phases`` and the other properties in its constructor. If
    there are attributes ``network`` (a module) and ``optimizer``, callbacks receive them, and
    `callbacks.ModelEMA` averages the parameters of ``network``.
    """

    @_property
    def phases(self) -> Sequence[Phase]:
        """The phases of the training, in order; `planned` makes them."""
        ...

    @_property
    def parameters(self) -> int:
        """The number of weights of the network."""
        ...

    @_property
    def flops(self) -> int:
        """FLOPs per sample of a step in the current phase, from the network's plan.

        Counts the forward pass and the gradients only, as the papers do.
        """
        ...

    def describe(self) -> Mapping[str, object]:
        """Describe the current phase for the run's events; ``phase`` is its number or name."""
        ...

    def enter(self, phase: int, step: int) -> None:
        """Move to a step of a phase.

        Args:
            phase: The phase, from 0; the one after the last means the end.
            step: The step of the phase, from 0.
        """
        ...

    def begin(self, batches: Iterator[Batch]) -> None:
        """Prepare a phase before its first step, which uses any batch drawn here [nothing].

        Args:
            batches: The batches.
        """

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Draw data and take one step; the objective returned is that before the step.

        Args:
            batches: The batches.
        """
        ...

    def validate(self) -> Metrics | None:
        """Return the objective on validation data; None without such data."""
        ...

    @_property
    def is_best(self) -> bool:
        """True if the last validation was the best so far, so that the state needs a checkpoint [False]."""
        return False

    @_property
    def should_stop(self) -> bool:
        """True if the phase may end before its last step [False]."""
        return False

    def state_dict(self) -> StateDict:
        """Return all state that a later process needs to continue bit by bit.

        Values are live tensors, this rank's parts of tensors, tensors in files, or plain values. The weights
        have the names of `network_tensors`.
        """
        ...

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Restore the plain values of a `state_dict`, whose live tensors have been filled in place.

        Args:
            state: The state.
        """
        ...


OPTIONAL = frozenset(("begin", "is_best", "should_stop"))
"""The members of `Strategy` that a subclass may leave as they are."""
