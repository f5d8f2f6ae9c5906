"""Time that the training loop adds to its operations.

Knows: a real run of a recipe, its seconds by kind. Does not know: the command line, memory.

The loop adds all of its time except that of its operations: `stack_step` and the forward passes of the stacks
below. Validation, which is separate work, is also reported separately. Prefetching competes with the
operations for cores, which their own clocks do not show. So at the end of each stack its last step runs again
several times without prefetching.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from cotswold import ops
from cotswold.bench.measure import Document, rounded
from cotswold.errors import UserError
from cotswold.recipe import load
from cotswold.run import Stop
from cotswold.training import open_job
from lib.training.breakdown import KINDS, LOWER, STEPS, VALIDATION, WAITING, Seconds, clocked

ALONE_STEPS = 20
_SETTLED_SECONDS = 0.3
"""Seconds until the reader has filled its queue and rests."""

Watch = Callable[[Mapping[str, object]], None]


def loop_share(recipe: str, overrides: Sequence[str], stores: Path, watch: Watch) -> Document:
    """Train the recipe in a temporary directory, and return a breakdown of its time.

    Raises UserError for a recipe without stacks.
    """
    if load(recipe, overrides).training.strategy == "supervised":
        raise UserError(f"{recipe} trains no stacks; use a recipe with strategy greedy or joint")
    with tempfile.TemporaryDirectory() as folder, clocked() as seconds:
        job = open_job(recipe, Path(folder) / "run", overrides=overrides, stores=stores)
        alone = _Alone(seconds, watch)
        job.train(alone, Stop())
    return _summary(seconds, alone.stacks)


class _Alone:
    """Watches a run, and times the last step of each stack again at the stack's end."""

    def __init__(self, seconds: Seconds, watch: Watch) -> None:
        self.seconds, self.watch = seconds, watch
        self.stacks: list[Document] = []
        self._before = 0

    def __call__(self, event: Mapping[str, object]) -> None:
        """Pass the event on."""
        with self.seconds.watching():
            self.watch(event)
            if event["kind"] == "phase_end":
                self._again(event["phase"])

    def _again(self, stack: object) -> None:
        steps = self.seconds.calls[STEPS][self._before :]
        self._before += len(steps)
        assert self.seconds.last_step is not None, "a stack takes at least one step"
        (state, *rest), options = self.seconds.last_step
        copy = replace(
            state, **{name: value.clone() for name, value in vars(state).items() if value is not None}
        )
        time.sleep(_SETTLED_SECONDS)
        alone = []
        for _ in range(ALONE_STEPS):
            start = time.perf_counter()
            ops.stack_step.__wrapped__(copy, *rest, **options)  # type: ignore[attr-defined]  # the untimed function
            alone.append(time.perf_counter() - start)
        row = {"stack": stack, "step_seconds": rounded(median(steps[-5 * ALONE_STEPS :]))}
        self.stacks.append({**row, "alone_seconds": rounded(median(alone)), "steps": len(steps)})


def _summary(seconds: Seconds, stacks: Sequence[Document]) -> Document:
    whole, operations = seconds.loop, seconds.of(STEPS) + seconds.of(LOWER)
    parts = {kind: seconds.of(kind) for kind in KINDS}
    parts["all else"] = whole - sum(parts.values())
    return {
        "steps": seconds.steps,
        "whole_seconds": rounded(whole),
        "operations_seconds": rounded(operations),
        "added_percent": rounded(100 * (whole / operations - 1)),
        "added_without_validation_percent": rounded(100 * ((whole - parts[VALIDATION]) / operations - 1)),
        "waited_percent": rounded(100 * parts[WAITING] / whole),
        "parts_seconds": {name: rounded(value) for name, value in parts.items()},
        "stacks": stacks,
    }
