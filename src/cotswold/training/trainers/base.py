"""The base class of trainers, with the calls of callbacks that all trainers share.

Knows: the interface of a run's job, the state of callbacks in checkpoints. Does not know: steps, strategies,
when a hook is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from cotswold.checkpoint import Checkpoint, TensorChunk
from cotswold.errors import UserError
from cotswold.training.callbacks.base import Status
from cotswold.training.callbacks.runner import CallbackRunner, TrainingState
from cotswold.training.strategies.registry import Runner

_NONE = CallbackRunner()


class Trainer(Runner, ABC):
    """Base class of trainers: the object that drives a run from its start or a checkpoint to its end.

    A job calls `use_callbacks`, `resume` if the run has a checkpoint, then `run`. A subclass calls
    ``self.callbacks.call(hook)`` at each moment, and overrides `training_state` and `planned`.
    """

    callbacks: CallbackRunner = _NONE
    is_ended_by_callback: bool = False
    """True if `run` returned because a callback raised `StopTraining`."""

    epochs_ended: int = 0
    """Epochs whose end `end_epochs` has reported."""

    @abstractmethod
    def run(self) -> bool:
        """Train to the end (True) or until a stop request (False); save in both cases."""

    def use_callbacks(self, callbacks: CallbackRunner) -> None:
        """Call these callbacks from now on. Raises UserError for one that this trainer cannot serve.

        Args:
            callbacks: The callbacks.
        """
        for each in callbacks.active:
            if each.needs_module and not self.keeps_module:
                raise UserError(
                    f"the callback {each.name} reads parameters after each step, but this strategy trains in "
                    "other processes or in whole iterations; use strategy supervised, or omit the callback"
                )
        self.callbacks, callbacks.source = callbacks, self.training_state

    @property
    def keeps_module(self) -> bool:
        """True if this process has the module, its gradients and its optimiser after each step [False]."""
        return False

    def training_state(self) -> TrainingState:
        """Return the state that callbacks receive [the progress alone]."""
        return TrainingState(step=self.number)

    @property
    def planned(self) -> float:
        """The amount of training that is planned, in any unit: a run that a callback ended continues if it
        grows [0].
        """
        return 0.0

    def callback_entries(self) -> tuple[Mapping[str, object], list[TensorChunk]]:
        """Return the entries and tensors of callbacks for a checkpoint; both are empty without callbacks."""
        return self.callbacks.state(self.planned)

    def load_callbacks(self, checkpoint: Checkpoint) -> None:
        """Restore the callbacks, after which ``callbacks.complete_reason`` says if the run has ended.

        Args:
            checkpoint: The checkpoint.
        """
        self.callbacks.load(checkpoint, self.planned)

    def call(self, hook: str, *, checkpoint: Path | None = None, status: Status = "running") -> None:
        """Call a hook of all callbacks.

        Args:
            hook: The name of the hook.
            checkpoint: The folder of the checkpoint that was written, if one was.
            status: The state of the run.
        """
        self.callbacks.call(hook, checkpoint=checkpoint, status=status)

    def end_epochs(self, ended: int) -> None:
        """Call `on_epoch_end` once for each epoch that has ended since the last call.

        Args:
            ended: The number of epochs that have ended.
        """
        while self.epochs_ended < ended:
            self.epochs_ended += 1
            self.call("on_epoch_end")

    @property
    def end_reason(self) -> str | None:
        """The reason of the callback that ended the run, now or before it was resumed; None if none did, or
        only on another rank.
        """
        ended = self.callbacks.ended if self.is_ended_by_callback else self.callbacks.loaded_end
        return None if ended is None else f"{ended.name}: {ended.reason}"
