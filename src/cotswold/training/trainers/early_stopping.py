"""Early stopping of replicas: evaluation results, the best one, and when to stop.

Knows: losses, patience, events. Does not know: how or when parameters are evaluated, how a run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from cotswold.replicas.evaluator import EvaluatorHandle
from cotswold.run import Recorder
from cotswold.training.trainers.async_checkpoint import AsyncCheckpointWriter
from cotswold.wire.lifecycle import EvaluateReply


class EarlyStopping:
    """The evaluations of a run; after ``patience`` evaluations in a row without improvement, the run ends."""

    def __init__(self, recorder: Recorder, patience: int | None) -> None:
        self._recorder, self.patience = recorder, patience
        self.best_loss = inf
        self.evaluations_without_gain = 0
        """The number of evaluations since the best one."""

    @property
    def is_exhausted(self) -> bool:
        """True if patience has run out."""
        return self.patience is not None and self.evaluations_without_gain >= self.patience

    def record(
        self, reply: EvaluateReply | None, evaluator: EvaluatorHandle | None, writer: AsyncCheckpointWriter
    ) -> None:
        """Write the event of an evaluation; if the result is the best, save its parameters."""
        if reply is None or evaluator is None:
            return
        number, means = reply.number, dict(reply.means)
        self._recorder.event(
            "validation",
            phase="layers",
            step=number,
            phase_step=number,
            training_seconds=self._recorder.seconds,
            validation_seconds=reply.seconds,
            **means,
        )
        point = evaluator.parameters() if number and means["loss"] < self.best_loss else None
        if means["loss"] < self.best_loss and (point is not None or not number):
            self.best_loss, self.evaluations_without_gain = means["loss"], 0
            if point is not None:
                writer.save_best(number, point)
        else:
            self.evaluations_without_gain += 1

    def state(self) -> dict[str, object]:
        """Return the state for a checkpoint."""
        return {
            "best_loss": None if self.best_loss == inf else self.best_loss,
            "without": self.evaluations_without_gain,
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        best, without = state.get("best_loss"), state.get("without")
        self.best_loss = best if isinstance(best, float) else inf
        self.evaluations_without_gain = without if type(without) is int else 0
