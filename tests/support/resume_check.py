"""Check that a strategy keeps its whole state: compare an uninterrupted run with a resumed run.

Knows: jobs and their last checkpoints. Does not know: any strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.run import Stop
from cotswold.training.jobs.create import Resume, open_job
from cotswold.training.jobs.job import Job


def check_resume(
    recipe: str | Path, folder: str | Path, *, overrides: Sequence[str] = (), stores: Path | None = None
) -> None:
    """Train a small recipe twice, without a stop in ``folder/whole`` and with one in ``folder/stopped``.

    Raises AssertionError if tensors or values of the two last checkpoints differ by a bit. The message names
    them: they are missing from the strategy's `state_dict`, or `load_state_dict` ignores them.
    """
    whole, stopped = Path(folder) / "whole", Path(folder) / "stopped"
    expected = _trained(open_job(recipe, whole, overrides=overrides, stores=stores))
    half = _trained(open_job(recipe, stopped, overrides=overrides, stores=stores), expected.step // 2)
    assert half.step < expected.step, f"{stopped} was over before it could be stopped; give it more epochs"
    found = _trained(open_job(None, stopped, stores=stores, resume=Resume.ALWAYS))
    tensors = [
        name
        for name in dict.fromkeys([*expected.names, *found.names])
        if name not in expected.names
        or name not in found.names
        or not torch.equal(expected.read(name), found.read(name))
    ]
    one, other = ({**_values(each, "strategy"), **_values(each, "position")} for each in (expected, found))
    differing = [*tensors, *(name for name in one | other if one.get(name) != other.get(name))]
    assert not differing, (
        f"a run that was stopped at step {half.step} and resumed ends with another {', '.join(differing)} "
        "than one in one go; something that the strategy needs is not in its state_dict or load_state_dict"
    )


def _trained(job: Job, until: int | None = None) -> Checkpoint:
    """Return the last checkpoint of a run that is trained to its end, or stopped at a step."""
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        step = event.get("step")
        if until is not None and isinstance(step, int) and step >= until:
            stop.signal = 15

    job.train(watch, stop)
    return Checkpoint(CheckpointManager(job.run.checkpoints).paths()[-1])


def _values(checkpoint: Checkpoint, table: str) -> dict[str, object]:
    values = checkpoint.state.get(table)
    return dict(values) if isinstance(values, dict) else {}
