"""Plan of a run of strategies `greedy`, `joint` and `supervised`: steps, memory, time of the updates.

Knows: counts of a recipe, its grid of ranks. Does not know: training, synchronous replicas (`data_parallel`),
time on a grid (`cotswold simulate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotswold.api.plan import base as plan
from cotswold.geometry import Grid

if TYPE_CHECKING:
    from cotswold.api.info import Info
    from cotswold.recipe import Recipe

_UPDATES_ALONE = "of updates only, without reading, validation, lower stacks"
_BY_SIMULATOR = "predicted by cotswold simulate"


def plan_row(found: Info, grid: Grid) -> plan.Row:
    """Return the plan of a recipe with known sizes, on a grid of ranks of this machine."""
    recipe, rows = found.recipe, found.layers
    training = recipe.training
    accumulate = int(getattr(training, "accumulate", 1))
    samples, exact = plan.training_samples(recipe)
    steps = steps_of(recipe, samples)
    row: plan.Row = {
        "strategy": training.strategy,
        "grid": str(grid),
        "ranks": grid.size,
        "samples": samples,
        **({} if exact else {"samples_are": "approximate, before the data are prepared"}),
        "batch_size": training.batch_size,
        "steps": sum(steps),
        **({"steps_of_stacks": ", ".join(f"{each:,}" for each in steps)} if len(steps) > 1 else {}),
        "parameters": found.totals["parameters"],
        "rank_memory_bytes": plan.PROCESS_BYTES + _rank_bytes(found, grid),
        "available_bytes": found.totals["available_bytes"],
    }
    if recipe.trains_stacks:
        row["run_flops"] = _over_steps(steps, [_number(each["update_flops"]) for each in rows])
    else:
        forward = [_number(each["forward_flops"]) for each in rows if each["forward_flops"]]
        row["step_flops"] = accumulate * (3 * sum(forward) - forward[0])  # the input needs no gradient
        row["run_flops"] = sum(steps) * _number(row["step_flops"])
    times = [each.get("update_seconds") for each in rows if recipe.trains_stacks]
    times = times or [found.totals.get("update_seconds")]
    if grid.size > 1 or None in times:
        return {**row, "times_are": _BY_SIMULATOR if grid.size > 1 else "not measured: too large"}
    seconds = accumulate * _over_steps(steps, [_number(each) for each in times])
    return {**row, "run_seconds": seconds, "times_are": _UPDATES_ALONE, **plan.cost(recipe, seconds)}


def steps_of(recipe: Recipe, samples: int) -> list[int]:
    """Return the number of steps: one for each stack of `greedy`, one number otherwise."""
    from cotswold.training.jobs.extend import epochs_of

    batches, epochs = samples / recipe.training.batch_size, epochs_of(recipe)
    if recipe.trains_stacks:
        return [max(1, round(each * batches)) for each in epochs]
    whole = max(1, int(batches))  # an epoch of a supervised run ends with its last whole batch
    updates = -(-whole // int(getattr(recipe.training, "accumulate", 1)))
    return [max(1, round(each * updates)) for each in epochs]


def _over_steps(steps: Sequence[int], each: Sequence[float]) -> float:
    """Return the sum over all steps of a figure of each stack; one number of steps is that of all stacks."""
    counts = steps if len(steps) == len(each) else [steps[0]] * len(each)
    return sum(count * one for count, one in zip(counts, each, strict=True))


def _rank_bytes(found: Info, grid: Grid) -> int:
    """Return the bytes of a rank without the libraries; each rank has a whole supervised network at first."""
    from cotswold.training.jobs.memory_estimate import rank_bytes

    if grid.size == 1 or not found.recipe.trains_stacks:
        return int(_number(found.totals["training_bytes"]))
    return rank_bytes(found.recipe, found.recipe.training.batch_size, grid)


def _number(value: object) -> float:
    assert isinstance(value, int | float), "counts and measured times"
    return value
