"""The interfaces between the full-batch trainer, its method and the processes that evaluate.

Knows: iterations, vectors by name. Does not know: methods, the processes that compute, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from cotswold.optim import Iteration, MethodState
from cotswold.training.full_batch.local import EvaluationProgress


class Method(Protocol):
    """The optimisation method that the trainer drives."""

    def step(self) -> Iteration:
        """Take one iteration."""
        ...

    def flush(self) -> None:
        """Apply updates that wait for the next evaluation; the point is then that of the last iteration."""
        ...

    def state(self) -> MethodState:
        """Return, between two iterations, all state that a later process needs to continue bit by bit."""
        ...

    def load(self, values: Mapping[str, object]) -> None:
        """Restore values that `state` returned, after the vectors have been restored."""
        ...


class Backend(Protocol):
    """The backend that evaluates the full batch: this process or a cluster."""

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of the value alone, and of value and gradient."""
        ...

    @property
    def workers(self) -> int:
        """The number of live workers."""
        ...

    def listen(self, on_progress: Callable[[EvaluationProgress], None]) -> None:
        """Call ``on_progress`` after every portion; if it raises, the evaluation ends."""
        ...

    def state(self) -> Mapping[str, object]:
        """Return the state for resuming, apart from vectors, as JSON-compatible values."""
        ...

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        ...

    def read(self, name: str) -> Tensor:
        """Return the present values of a vector ``(size,)``."""
        ...

    def write(self, name: str, value: Tensor) -> None:
        """Set a vector, which is created if it is missing."""
        ...

    def validate(self) -> Mapping[str, float] | None:
        """Return the mean metrics over the validation samples at the point."""
        ...
