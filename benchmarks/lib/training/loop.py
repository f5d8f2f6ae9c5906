"""What the training loop adds to the time of its operations.

Knows: a real run of a recipe, its seconds by kind. Does not know: the command line, memory.

The share that the loop adds is all of its time but that of its operations: `stack_step` and the forward
passes of the stacks below. Validation, which is work of its own and not of the loop, is also shown apart.
Reading ahead competes with the operations for cores, which no clock inside them shows; so at the end of each
stack its last step is run again some times, with no reading beside it.
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
"""After so long the reader has its batches ahead and rests."""

Watch = Callable[[Mapping[str, object]], None]


def loop_share(recipe: str, overrides: Sequence[str], stores: Path, watch: Watch) -> Document:
    """Train the recipe in a directory that is thrown away, and say where its time went.

    Raises UserError for a recipe without stacks.
    """
    if load(recipe, overrides).training.strategy == "supervised":
        raise UserError(f"{recipe} trains no stacks; name a recipe with strategy greedy or joint")
    with tempfile.TemporaryDirectory() as folder, clocked() as seconds:
        job = open_job(recipe, Path(folder) / "run", overrides=overrides, stores=stores)
        alone = _Alone(seconds, watch)
        job.train(alone, Stop())
    return _summary(seconds, alone.stacks)


class _Alone:
    """Watches a run, and times the last step of each stack again when the stack is finished."""

    def __init__(self, seconds: Seconds, watch: Watch) -> None:
        self.seconds, self.watch = seconds, watch
        self.stacks: list[Document] = []
        self._before = 0

    def __call__(self, event: Mapping[str, object]) -> None:
        """Hand the event on."""
        with self.seconds.watching():
            self.watch(event)
            if event["kind"] == "stack_end":
                self._again(event["stack"])

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
            ops.stack_step.__wrapped__(copy, *rest, **options)  # type: ignore[attr-defined]  # the one that is not timed
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
