"""Breakdown of the time of a training run.

Knows: which functions of training are operations, which belong to the loop. Does not know: recipes, reports.

The functions are temporarily replaced by ones that record the seconds of each call in the loop; work before
and after the loop is left out. Of nested calls only the outermost counts, so the forward pass of a validation
belongs to validation. So the calls are disjoint parts of the loop, by one clock, which pauses for the
watcher.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cotswold import ops
from cotswold.checkpoint import CheckpointManager
from cotswold.data.loading.reader import Reader
from cotswold.nn import SparseAutoencoderStack
from cotswold.run import EventLog
from cotswold.training.strategies.greedy import Greedy
from cotswold.training.strategies.joint import Joint
from cotswold.training.trainers.sync import SyncTrainer

STEPS, LOWER, VALIDATION, BEGINNING = "stack_step", "forward of lower stacks", "validation", "calibration"
SAVING, EVENTS, WAITING = "checkpoints", "events", "waiting for images"
KINDS = (STEPS, LOWER, VALIDATION, BEGINNING, SAVING, EVENTS, WAITING)
_CALLS: tuple[tuple[str, Any, str], ...] = (
    (STEPS, ops, "stack_step"),
    (LOWER, SparseAutoencoderStack, "forward"),
    (VALIDATION, Greedy, "validate"),
    (VALIDATION, Joint, "validate"),
    (BEGINNING, Greedy, "begin"),
    (BEGINNING, Joint, "begin"),
    (SAVING, CheckpointManager, "save"),
    (EVENTS, EventLog, "write"),
    (WAITING, Reader, "next"),
)


@dataclass
class Seconds:
    """Seconds of every call in the loop by kind, and of the whole loop."""

    calls: dict[str, list[float]] = field(default_factory=dict)
    loop: float = 0.0
    steps: int = 0
    last_step: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """Arguments of the last `stack_step`."""
    _counts: bool = False
    """True if the next call counts: inside the loop, and inside no other counted call."""
    _watched: float = 0.0

    def of(self, kind: str) -> float:
        """Return the seconds of all calls of a kind."""
        return sum(self.calls.get(kind, []))

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed inside the loop unless another timed function calls it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._counts:
                return function(*args, **kwargs)
            self._counts = False
            if kind == STEPS:
                self.last_step = args, kwargs
            start = self._now()
            try:
                return function(*args, **kwargs)
            finally:
                self.calls.setdefault(kind, []).append(self._now() - start)
                self._counts = True

        return call

    def looped(self, function: Callable[[SyncTrainer], bool]) -> Callable[[SyncTrainer], bool]:
        """Return the loop's run, timed."""

        @functools.wraps(function)
        def run(loop: SyncTrainer) -> bool:
            start, self._counts = self._now(), True
            try:
                return function(loop)
            finally:
                self._counts = False
                self.loop += self._now() - start
                self.steps += loop.position.total

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Exclude the time inside the context from the loop and its calls."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._watched += time.perf_counter() - start

    def _now(self) -> float:
        return time.perf_counter() - self._watched


@contextmanager
def clocked() -> Iterator[Seconds]:
    """Record the seconds of all training inside the context."""
    seconds = Seconds()
    replaced = [(owner, name, getattr(owner, name)) for _, owner, name in _CALLS]
    run = SyncTrainer.run
    for kind, owner, name in _CALLS:
        setattr(owner, name, seconds.timed(kind, getattr(owner, name)))
    setattr(SyncTrainer, "run", seconds.looped(run))  # noqa: B010
    try:
        yield seconds
    finally:
        setattr(SyncTrainer, "run", run)  # noqa: B010
        for owner, name, function in replaced:
            setattr(owner, name, function)
