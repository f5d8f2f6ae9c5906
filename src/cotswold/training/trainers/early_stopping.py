"""Validations while replicas learn: what an evaluator found, which was the best, when enough is enough.

Knows: losses, patience, events. Does not know: how parameters are judged, when, what a run does at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from cotswold.replicas.evaluator import Evaluator
from cotswold.run import Recorder
from cotswold.training.trainers.async_checkpoint import Saving
from cotswold.wire.lifecycle import Judged


class Validations:
    """Those of a run; ``patience``: so many in a row that are no better end it."""

    def __init__(self, recorder: Recorder, patience: int | None) -> None:
        self._recorder, self.patience = recorder, patience
        self.best_loss = inf
        self.without = 0
        """Since the best."""

    @property
    def is_enough(self) -> bool:
        """Whether patience has run out."""
        return self.patience is not None and self.without >= self.patience

    def tell(self, judged: Judged | None, evaluator: Evaluator | None, saving: Saving) -> None:
        """Write an event of a judgement; have what was judged saved, if it is the best."""
        if judged is None or evaluator is None:
            return
        number, means = judged.number, dict(judged.means)
        self._recorder.event(
            "validation",
            stack="layers",
            step=number,
            at=number,
            training_seconds=self._recorder.seconds,
            validation_seconds=judged.seconds,
            **means,
        )
        point = evaluator.parameters() if number and means["loss"] < self.best_loss else None
        if means["loss"] < self.best_loss and (point is not None or not number):
            self.best_loss, self.without = means["loss"], 0
            if point is not None:
                saving.save_best(number, point)
        else:
            self.without += 1

    def state(self) -> dict[str, object]:
        """For a checkpoint."""
        return {"best_loss": None if self.best_loss == inf else self.best_loss, "without": self.without}

    def load(self, state: Mapping[str, object]) -> None:
        """Go on from `state`."""
        best, without = state.get("best_loss"), state.get("without")
        self.best_loss = best if isinstance(best, float) else inf
        self.without = without if type(without) is int else 0
