"""Early stopping: the best value of a validation, and the end of a run that no longer improves it.

Knows: values, patience. Does not know: how or when a network is validated, what is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf
from typing import Literal


class Patience:
    """The best validation loss; after ``patience`` validations in a row without a better one, a run ends.

    A value is better if it is below the best by more than ``min_delta``, or, with mode `max`, above it.
    """

    def __init__(
        self, patience: int | None, min_delta: float = 0.0, mode: Literal["min", "max"] = "min"
    ) -> None:
        self.patience = patience
        self._min_delta, self._sign = min_delta, 1.0 if mode == "min" else -1.0
        self.best_loss = self._sign * inf
        """The best value so far."""
        self.since_best = 0
        """Number of validations since the best one."""

    @property
    def is_exhausted(self) -> bool:
        """True if patience has run out."""
        return self.patience is not None and self.since_best >= self.patience

    @property
    def reason(self) -> str:
        """The reason why the run ends."""
        return f"no better validation {self.patience} times"

    def update(self, loss: float) -> bool:
        """Count a validation; return True if its value is the best so far."""
        is_best = self._sign * loss < self._sign * self.best_loss - self._min_delta
        self.best_loss, self.since_best = (loss, 0) if is_best else (self.best_loss, self.since_best + 1)
        return is_best

    def restart(self) -> None:
        """Restart the count; the best value stays."""
        self.since_best = 0

    def state(self) -> dict[str, float | int | None]:
        """Return the state for a checkpoint."""
        best = None if isinf(self.best_loss) else self.best_loss
        return {"best_loss": best, "since_best": self.since_best}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        best, since = state["best_loss"], state["since_best"]
        self.best_loss = best if isinstance(best, float) else self._sign * inf
        self.since_best = since if type(since) is int else 0
