"""Early stopping: the best validation loss, and the end of a run that no longer improves it.

Knows: losses, patience. Does not know: how or when a network is validated, what is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf


class EarlyStopping:
    """The best validation loss; after ``patience`` validations in a row without a better one, a run ends."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.best_loss = inf
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
        """Count a validation; return True if its loss is the best so far."""
        is_best = loss < self.best_loss
        self.best_loss, self.since_best = (loss, 0) if is_best else (self.best_loss, self.since_best + 1)
        return is_best

    def restart(self) -> None:
        """Restart the count; the best loss stays."""
        self.since_best = 0

    def state(self) -> dict[str, float | int | None]:
        """Return the state for a checkpoint."""
        return {"best_loss": None if self.best_loss == inf else self.best_loss, "since_best": self.since_best}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        best, since = state["best_loss"], state["since_best"]
        self.best_loss = best if isinstance(best, float) else inf
        self.since_best = since if type(since) is int else 0
