"""A callback that ends a run when a metric of validation no longer improves.

Knows: the metrics of validations. Does not know: what is validated, what is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, Literal

from cotswold.errors import UserError
from cotswold.training.callbacks.base import Callback, CallbackContext, StopTraining
from cotswold.training.early_stopping import Patience


class EarlyStopping(Callback):
    """End the run after some validations in a row without a better value of a metric.

    The validation before the first step counts. A run that ended so continues if it is resumed with more
    training or a larger ``patience``. With more training the count starts again, and the best value stays.

    Args:
        monitor: The metric: ``loss``, or another name in the events of kind `validation`, such as `accuracy`.
        patience: The number of validations in a row without a better value, at least 1.
        min_delta: A value is better only if the difference from the best is larger than this.
        mode: ``min`` if smaller values are better, ``max`` if larger ones are.

    Raises:
        UserError: If an argument is invalid.
    """

    def __init__(
        self,
        monitor: str = "loss",
        patience: int = 3,
        *,
        min_delta: float = 0.0,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise UserError(f"patience={patience!r} of EarlyStopping is not an integer of at least 1")
        if not isinstance(monitor, str):
            raise UserError(f"monitor={monitor!r:.80} of EarlyStopping is not the name of a metric")
        if mode not in ("min", "max"):
            raise UserError(f"mode={mode!r:.80} of EarlyStopping is neither 'min' nor 'max'")
        if not isinstance(min_delta, int | float) or isnan(min_delta) or min_delta < 0:
            raise UserError(f"min_delta={min_delta!r:.80} of EarlyStopping is not a number of at least 0")
        self.monitor = monitor
        self._patience = Patience(patience, float(min_delta), mode)
        self._has_ended = self._is_validated = False

    def on_start(self, context: CallbackContext) -> None:
        """Start the count again if the run continues after its end.

        Args:
            context: The state of the run.
        """
        if self._has_ended:
            self._has_ended = False
            if self._patience.is_exhausted:
                self._patience.restart()

    def on_validation_end(self, context: CallbackContext) -> None:
        """Count the validation.

        Args:
            context: The state of the run.

        Raises:
            StopTraining: If patience has run out.
            UserError: If the validation has no such metric.
        """
        self._is_validated = True
        if self.monitor not in context.metrics:
            known = ", ".join(context.metrics)
            raise UserError(f"the validation has no metric {self.monitor!r}; give monitor one of {known}")
        self._patience.update(float(context.metrics[self.monitor]))
        if self._patience.is_exhausted:
            self._has_ended = True
            raise StopTraining(
                f"no better {self.monitor} in {self._patience.patience} validations in a row; the best is "
                f"{self._patience.best_loss:.6g}"
            )

    def on_epoch_end(self, context: CallbackContext) -> None:
        """Check that the run validates.

        Args:
            context: The state of the run.

        Raises:
            UserError: If there was no validation before the first step.
        """
        if context.batch is not None:  # other strategies validate in parallel
            self._check_validated()

    def on_end(self, context: CallbackContext) -> None:
        """Check that the run has validated.

        Args:
            context: The state of the run.

        Raises:
            UserError: If a finished run has no validation.
        """
        if context.status == "finished":
            self._check_validated()

    def _check_validated(self) -> None:
        if not self._is_validated:
            raise UserError("the run has no validation; give validation samples, or omit EarlyStopping")

    def state_dict(self) -> Mapping[str, Any]:
        """Return the best value and the count."""
        return {
            **self._patience.state(),
            "has_ended": self._has_ended,
            "is_validated": self._is_validated,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and the count.

        Args:
            state: The state.
        """
        self._patience.load(state)
        self._has_ended, self._is_validated = state["has_ended"] is True, state["is_validated"] is True

    def may_continue(self) -> bool:
        """Return True if ``patience`` is now larger than the count."""
        return not self._patience.is_exhausted
