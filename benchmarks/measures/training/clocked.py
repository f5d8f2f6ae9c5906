"""Where the time of a training run goes.

Knows: which functions of training are operations, which are the loop's own. Does not know: recipes, reports.

For a while the functions are replaced by ones that note the seconds of each call. Of calls inside each other
only the outermost counts, so that a validation's forward pass belongs to validation.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cotswold import ops
from cotswold.checkpoint import Checkpoints
from cotswold.nn import SparseAutoencoderStack
from cotswold.run import EventLog
from cotswold.training.greedy import Greedy
from cotswold.training.joint import Joint
from cotswold.training.runners.synchronous import Synchronous

STEPS, LOWER, VALIDATION, BEGINNING = "stack_step", "forward of lower stacks", "validation", "calibration"
SAVING, EVENTS, WAITING = "checkpoints", "events", "waiting for pictures"
_CALLS: tuple[tuple[str, Any, str], ...] = (
    (STEPS, ops, "stack_step"),
    (LOWER, SparseAutoencoderStack, "forward"),
    (VALIDATION, Greedy, "validate"),
    (VALIDATION, Joint, "validate"),
    (BEGINNING, Greedy, "begin"),
    (BEGINNING, Joint, "begin"),
    (SAVING, Checkpoints, "save"),
    (EVENTS, EventLog, "write"),
)


@dataclass
class Seconds:
    """Seconds of every call by kind, and those of the whole loop."""

    calls: dict[str, list[float]] = field(default_factory=dict)
    loop: float = 0.0
    waited: float = 0.0
    steps: int = 0
    last_step: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    """The arguments of the last `stack_step`."""
    _inside: bool = False

    def of(self, kind: str) -> float:
        """Seconds of all calls of a kind."""
        return sum(self.calls.get(kind, []))

    def timed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed unless it is called by another that is."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            if kind == STEPS:
                self.last_step = args, kwargs
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.calls.setdefault(kind, []).append(time.perf_counter() - start)
                self._inside = False

        return call

    def looped(self, function: Callable[[Synchronous], bool]) -> Callable[[Synchronous], bool]:
        """The loop's whole run, timed."""

        @functools.wraps(function)
        def run(loop: Synchronous) -> bool:
            start = time.perf_counter()
            try:
                return function(loop)
            finally:
                self.loop += time.perf_counter() - start
                self.waited += loop.batches.waited_seconds
                self.steps += loop.position.total

        return run


@contextmanager
def clocked() -> Iterator[Seconds]:
    """Notes the seconds of all training that goes on inside."""
    seconds = Seconds()
    replaced = [(owner, name, getattr(owner, name)) for _, owner, name in _CALLS]
    run = Synchronous.run
    for kind, owner, name in _CALLS:
        setattr(owner, name, seconds.timed(kind, getattr(owner, name)))
    setattr(Synchronous, "run", seconds.looped(run))  # noqa: B010
    try:
        yield seconds
    finally:
        setattr(Synchronous, "run", run)  # noqa: B010
        for owner, name, function in replaced:
            setattr(owner, name, function)
