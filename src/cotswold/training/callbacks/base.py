"""The base class of callbacks, and what they receive.

Knows: the moments of a run. Does not know: any one callback, who calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from cotswold.run import Stop
    from cotswold.training.strategies.base import Batch

Status = Literal["running", "finished", "interrupted", "limited", "failed"]
"""The state of a run; all but the first are those of the event ``end``."""


class StopTraining(Exception):  # noqa: N818  # an instruction, not an error
    """Raised by a callback to end the run: it saves a checkpoint and counts as finished.

    Args:
        reason: The reason, which the events and a later resume report.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class EventWriter(Protocol):
    """Writes an event to a run's log."""

    def __call__(self, kind: str, **fields: object) -> None:
        """Write an event of a kind with its fields."""


@dataclass(frozen=True)
class CallbackContext:
    """The state of a run, as a callback receives it. A callback reads it and changes nothing.

    Args:
        run: The directory of the run.
        module: The network, or None before there is one. On a mesh, its parameters are this rank's parts.
        optimizer: The optimiser, or None if the strategy has none in this process.
        batch: The last batch, or None if other processes draw the batches.
        step: Steps so far: of `batch` iterations, of `downpour` counted samples.
        epoch: Complete epochs so far.
        metrics: The newest measurements of the step or the validation, by name.
        stop: The run's request to stop; `Stop.request` sets it.
        event: Writes an event of the given kind, with the given fields, to the run's log.
        checkpoint: The folder of the newest checkpoint in `Callback.on_checkpoint`, else None.
        status: ``running``, and in `Callback.on_end` the result.
    """

    run: Path
    module: nn.Module | None
    optimizer: Optimizer | None
    batch: Batch | None
    step: int
    epoch: int
    metrics: Mapping[str, float]
    stop: Stop
    event: EventWriter
    checkpoint: Path | None = None
    status: Status = "running"


class Callback:
    """An observer of a run; every hook does nothing unless a subclass overrides it.

    A hook that raises an exception is reported once, in an event and a warning, and the callback is called no
    more; the run continues as without it. `StopTraining` ends the run instead.

    Attributes:
        every_rank: True to be called on every rank of a run with several ranks, not only on rank 0.
        needs_module: True if the callback reads parameters or gradients after each step; a strategy whose
            module is in other processes then refuses it.
    """

    every_rank: bool = False
    needs_module: bool = False

    @property
    def name(self) -> str:
        """The name in events and checkpoints [that of the class]."""
        return type(self).__name__

    def on_start(self, context: CallbackContext) -> None:
        """Training starts or resumes; the state of the last checkpoint is loaded.

        Args:
            context: The state of the run.
        """

    def on_batch_start(self, context: CallbackContext) -> None:
        """A batch was drawn, and no step has used it.

        Args:
            context: The state of the run.
        """

    def on_step_end(self, context: CallbackContext) -> None:
        """A step has ended.

        Args:
            context: The state of the run; ``metrics`` are those of the step.
        """

    def on_epoch_end(self, context: CallbackContext) -> None:
        """An epoch has ended, with the validation that follows it.

        Args:
            context: The state of the run.
        """

    def on_validation_end(self, context: CallbackContext) -> None:
        """A validation has ended.

        Args:
            context: The state of the run; ``metrics`` are those of the validation.
        """

    def on_checkpoint(self, context: CallbackContext) -> None:
        """A checkpoint was written.

        Args:
            context: The state of the run, with the folder of the checkpoint.
        """

    def on_end(self, context: CallbackContext) -> None:
        """The run has finished, stopped or failed; no other hook but `on_event` follows.

        Args:
            context: The state of the run, with its status.
        """

    def on_event(self, event: Mapping[str, object]) -> None:
        """Receive an event of the run, after the log has it.

        Args:
            event: The event, with at least ``kind``, ``time`` and ``seconds``.
        """

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state that checkpoints keep: tensors and JSON values by name [none]."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; called before `on_start` when a run resumes.

        Args:
            state: The state.
        """

    def may_continue(self) -> bool:
        """Return True if a run that this callback ended may continue when it is resumed [False].

        Called after `load_state_dict`. A run with more epochs than before continues in any case.
        """
        return False


HOOKS = tuple(each for each in vars(Callback) if each.startswith("on_"))
"""The names of all hooks."""


def overrides(callback: Callback, hook: str) -> bool:
    """Return True if a callback does something in a hook."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)
