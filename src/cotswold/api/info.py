"""Sizes, counts and expected times of a recipe.

Knows: the functions that count for stacks and for layers. Does not know: how they count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from cotswold.api.request import override_list, recipe_name
from cotswold.api.threads import compute_threads
from cotswold.ui.display import Display, display_for

if TYPE_CHECKING:
    from cotswold.recipe import Recipe

Row = dict[str, object]
_SMALL_BYTES, _TIMED = 1 << 30, 3
"""Maximum size of layers that are measured whole, and the number of measurements."""


@dataclass(frozen=True)
class Info:
    """Resources that a recipe would need.

    Args:
        recipe: The recipe, with the shape of its samples.
        layers: One row per stack or layer, from the input upwards: bytes, FLOPs and seconds by name.
        totals: Weights, bytes that training needs and that are available, and the largest batch that fits.
    """

    recipe: Recipe
    layers: list[Row]
    """One row per stack or layer, from the input upwards: bytes, FLOPs and seconds by name."""
    totals: Row
    """Weights, bytes that training needs and that are available, and the largest batch that fits."""


def info(
    recipe: str | Path | Recipe,
    *,
    overrides: Mapping[str, object] | Sequence[str] = (),
    time: bool = True,
    threads: int | None = None,
    progress: bool | None = None,
) -> Info:
    """Compute sizes, counts and expected times of a recipe without training or large allocations.

    Args:
        recipe: A recipe, or its name or path.
        overrides: Changed fields of the recipe, ``{"training.epochs": 2}`` or ``["training.epochs=2"]``.
        time: Measure a small piece of every stack to estimate the time of an update on this machine. Layers
            that take less than 1 GiB are measured whole.
        threads: Number of threads for the measurement. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        RecipeError: if the recipe is invalid.
    """
    from cotswold import recipe as recipes

    display = display_for(progress)
    with recipe_name(recipe) as name:
        assert name is not None, "there is a recipe"
        found = recipes.load(name, override_list(overrides), display.show)
    with compute_threads(threads, found):
        if found.data.store is not None:
            from cotswold.training.data.stores import open_store, with_store_shape

            found = with_store_shape(found, open_store(found, Path()))
        elif _missing_source_note(found) is None:
            from cotswold.training.data.stores import with_features

            found = with_features(found)
        supervised = not found.trains_stacks
        rows, needed, unknown = _layers(found) if supervised else (*_stacks(found, time, display), None)
        weights = sum(int(str(row["parameters"])) for row in rows)
        batch = found.training.batch_size
        totals: Row = {"parameters": weights, **_memory(needed, batch)}
        if unknown is not None:
            totals["not_known"] = unknown
        elif time and found.training.strategy == "supervised" and needed(batch) <= _SMALL_BYTES:
            totals["update_seconds"] = _layers_seconds(found)
        if (missing := _missing_source_note(found)) is not None:
            totals[found.data.type] = missing
        if found.offloaded:
            from cotswold.training.parameters.offload.memory_plan import disk_bytes

            totals["disk_bytes"] = disk_bytes(found)
    return Info(found, rows, totals)


def _missing_source_note(recipe: Recipe) -> str | None:
    """Return a sentence if the recipe's source is missing, which training will need."""
    from cotswold.data.sources.plugins import has_plugin_scheme
    from cotswold.errors import RecipeError
    from cotswold.recipe import expand

    source = recipe.data.source
    if source is None or source.startswith("builtin:") or has_plugin_scheme(source):
        return None
    try:
        path = Path(expand(source))
    except RecipeError:
        return f"the environment variable in {source} is not set; training needs it"
    return None if path.exists() else f"{path} does not exist; training needs it"


def _memory(needed: Callable[[int], int], batch: int) -> Row:
    """Return the bytes that training needs and that are available, and the largest batch that fits."""
    from cotswold.host import available_bytes
    from cotswold.training.jobs.memory_estimate import largest_batch

    taken, free = needed(batch), available_bytes()
    totals: Row = {"training_bytes": taken, "available_bytes": free, "fits": taken <= free}
    if taken > free:
        totals["largest_batch_that_fits"] = largest_batch(needed, batch, free)
    return totals


def _stacks(recipe: Recipe, timed: bool, display: Display) -> tuple[list[Row], Callable[[int], int]]:
    """Return a row per stack, and a function from batch size to bytes."""
    from cotswold.training.jobs.memory_estimate import stack_budgets, training_bytes

    rows: list[Row] = []
    batch = recipe.training.batch_size
    seconds = _seconds(recipe, display) if timed else []
    for number, budget in enumerate(stack_budgets(recipe, batch), 1):
        row: Row = {
            "stack": number,
            "input": str(budget.input),
            "blocks": f"{budget.grid[0]} x {budget.grid[1]}",
            "responses": str(budget.responses),
            "output": str(budget.output),
            "parameters": budget.parameters,
            "filter_bytes": budget.filter_bytes,
            "momentum_bytes": budget.momentum_bytes,
            "activation_bytes": budget.activation_bytes,
            "update_flops": budget.update_flops,
            "update_bytes": budget.update_bytes,
        }
        if timed:
            row["update_seconds"] = seconds[number - 1]
        rows.append(row)
    return rows, partial(training_bytes, recipe)


def _seconds(recipe: Recipe, display: Display) -> list[float | None]:
    """Return the expected time of an update of each stack."""
    from cotswold.bench.machine.probe import update_seconds

    geometries, found = recipe.stack_geometries(), []
    with display.count("measuring", "stacks") as advance:
        for done, geometry in enumerate(geometries):
            advance(done, len(geometries))
            found.append(update_seconds(geometry, recipe.training.batch_size))
        advance(len(geometries), len(geometries))
    return found


def _layers_seconds(recipe: Recipe) -> float:
    """Return the time of a forward and backward pass of a mini-batch through the layers, without reading."""
    import torch

    from cotswold.training.data.stores import class_count
    from cotswold.training.jobs.restore import supervised_network
    from cotswold.training.losses import loss_of

    outputs, batch, shape = class_count(recipe), recipe.training.batch_size, recipe.input
    network, loss = supervised_network(recipe, outputs).train(), loss_of(recipe)
    inputs = torch.rand(batch, shape.channels, shape.height, shape.width)
    targets = torch.zeros(batch, outputs) if recipe.loss == "squared_error" else torch.zeros(batch).long()
    seconds = []
    for _ in range(_TIMED):
        began = perf_counter()
        loss(network(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        seconds.append(perf_counter() - began)
    return min(seconds)  # the first one compiles


def _layers(recipe: Recipe) -> tuple[list[Row], Callable[[int], int], str | None]:
    """Return a row per layer, a function from batch size to bytes, and a note on unknown parts.

    The bytes include the stacks below. Without samples, the number of classes is unknown, and the output
    layer has no row.
    """
    from cotswold.errors import CotswoldError
    from cotswold.training.data.stores import class_count
    from cotswold.training.jobs.restore import geometries_below, needed_bytes
    from cotswold.training.models import planned_layers

    unknown, below = None, geometries_below(recipe)
    try:
        classes = class_count(recipe)
    except CotswoldError as error:
        classes, unknown = (
            1,
            f"the number of classes, and with it the output layer, which is missing here: {error}",
        )
    plans = planned_layers(recipe, classes, below[-1].output if below else None)
    rows: list[Row] = [
        {
            "layer": number,
            "type": plan.name,
            "output": " x ".join(map(str, plan.output)),
            "parameters": plan.parameters,
            "filter_bytes": 4 * plan.parameters,
            "forward_flops": plan.forward_flops * recipe.training.batch_size,
        }
        for number, plan in enumerate(plans if unknown is None else plans[:-1], 1)
    ]
    return rows, partial(needed_bytes, recipe, classes), unknown
