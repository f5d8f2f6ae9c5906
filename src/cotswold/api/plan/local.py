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
    batches, steps = batches_of(recipe, samples), steps_of(recipe, samples)
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
        row["run_flops"] = _over_batches(batches, [_number(each["update_flops"]) for each in rows])
    else:
        forward = [_number(each["forward_flops"]) for each in rows if each["forward_flops"]]
        batch_flops = 3 * sum(forward) - forward[0]  # the input needs no gradient
        row["step_flops"] = accumulate * batch_flops
        row["run_flops"] = sum(batches) * batch_flops  # the last step of an epoch may have fewer batches
    times = [each.get("update_seconds") for each in rows if recipe.trains_stacks]
    times = times or [found.totals.get("update_seconds")]
    if grid.size > 1 or None in times:
        return {**row, "times_are": _BY_SIMULATOR if grid.size > 1 else "not measured: too large"}
    seconds = _over_batches(batches, [_number(each) for each in times])
    return {**row, "run_seconds": seconds, "times_are": _UPDATES_ALONE, **plan.cost(recipe, seconds)}


def batches_of(recipe: Recipe, samples: int) -> list[int]:
    """Return the number of batches: one for each stack of `greedy`, one number otherwise."""
    from cotswold.training.jobs.extend import epochs_of
    from cotswold.training.strategies import supervised

    if recipe.trains_stacks:
        return [max(1, round(each * samples / recipe.training.batch_size)) for each in epochs_of(recipe)]
    return [supervised.batches_of(each, _epoch_batches(recipe, samples)) for each in epochs_of(recipe)]


def steps_of(recipe: Recipe, samples: int) -> list[int]:
    """Return the number of steps, for the same parts; a step of a supervised run may have several batches."""
    from cotswold.training.strategies.supervised import updates_of

    batches = batches_of(recipe, samples)
    if recipe.trains_stacks:
        return batches
    accumulate = int(getattr(recipe.training, "accumulate", 1))
    return [updates_of(each, _epoch_batches(recipe, samples), accumulate) for each in batches]


def _epoch_batches(recipe: Recipe, samples: int) -> int:
    """Return the batches of an epoch of a supervised run, which ends with its last whole batch."""
    return max(1, samples // recipe.training.batch_size)


def _over_batches(batches: Sequence[int], each: Sequence[float]) -> float:
    """Return the sum over all batches of a figure of each stack; one number of batches is that of all
    stacks.
    """
    counts = batches if len(batches) == len(each) else [batches[0]] * len(each)
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
