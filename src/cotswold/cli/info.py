"""`cotswold info`.

Knows: how to lay a recipe's counts out as a table. Does not know: how they are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.recipe import Recipe

Row = dict[str, object]

_HEADINGS = {
    "filter_bytes": "filter\nmemory",
    "momentum_bytes": "momentum\nmemory",
    "activation_bytes": "activation\nmemory",
    "update_flops": "update\nFLOPs",
    "update_bytes": "update\nbytes\nmoved",
    "update_seconds": "update\ntime",
    "forward_flops": "forward\nFLOPs",
}
_PIPED_WIDTH = 150


def info(
    recipe: str,
    *,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    time: bool = True,
    threads: int | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Sizes, counts and expected times of a recipe; nothing is trained and nothing of its size is allocated.

    Examples:

      cotswold info demo
      cotswold info coates2013-11b
      cotswold info my.toml --set training.batch=32 --json

    Parameters
    ----------
    recipe
        A recipe file or the name of a shipped recipe.
    set
        Overrides a field, as in training.batch=32; may be given again.
    time
        Measure a small piece of every stack to estimate the time of an update on this machine.
    threads
        Threads of that measurement; the recipe's, or all cores that this process is granted, by default.
    json_
        Print JSON.
    """
    from cotswold import recipe as recipes
    from cotswold.api.progress import say
    from cotswold.api.threads import use_threads

    found = recipes.load(recipe, set or [], say)
    use_threads(threads, found)
    if found.data.store is not None:
        from cotswold.training.stores import open_store, with_store_shape

        found = with_store_shape(found, open_store(found, Path()))
    supervised = found.training.strategy == "supervised"
    rows, needed, unknown = _layers(found) if supervised else (*_stacks(found, time), None)
    weights = sum(int(str(row["parameters"])) for row in rows)
    totals: Row = {"parameters": weights, **_memory(needed, found.training.batch)}
    if unknown is not None:
        totals["not_known"] = unknown
    if (missing := _missing(found)) is not None:
        totals["pictures"] = missing
    if found.training.offload == "disk":
        from cotswold.training.offload.room import disk_bytes

        totals["disk_bytes"] = disk_bytes(found)
    if json_:
        print(json.dumps({"name": found.name, "layers": rows, **totals}, indent=1))
        return
    _print_table(f"{found.name}: {found.training.strategy}, batches of {found.training.batch}", rows)
    if totals.get("largest_batch_that_fits") == 0:
        del totals["fits"], totals["largest_batch_that_fits"]
        totals["fits"] = "no; it does not fit with any batch"
    for name, value in totals.items():
        print(f"{name.replace('_', ' ')}: {_figure(name, value)}")


def _missing(recipe: Recipe) -> str | None:
    """A sentence where the source of pictures is not here, which training will need."""
    from cotswold.errors import RecipeError
    from cotswold.recipe import expand

    source = recipe.data.source
    if source is None or source.startswith("builtin:"):
        return None
    try:
        path = Path(expand(source))
    except RecipeError:
        return f"the environment variable in {source} is not set; training needs it"
    return None if path.exists() else f"{path} does not exist; training needs it"


def _memory(needed: Callable[[int], int], batch: int) -> Row:
    """What training takes, what there is, and what would fit."""
    from cotswold.host import available_bytes
    from cotswold.training.budget import largest_batch

    taken, free = needed(batch), available_bytes()
    totals: Row = {"training_bytes": taken, "available_bytes": free, "fits": taken <= free}
    if taken > free:
        totals["largest_batch_that_fits"] = largest_batch(needed, batch, free)
    return totals


def _stacks(recipe: Recipe, timed: bool) -> tuple[list[Row], Callable[[int], int]]:
    """A row a stack, and the bytes that a mini-batch takes."""
    from cotswold.training.budget import stack_budgets, training_bytes

    rows: list[Row] = []
    batch = recipe.training.batch
    seconds = _seconds(recipe) if timed else []
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


def _seconds(recipe: Recipe) -> list[float | None]:
    """The expected time of an update of each stack."""
    from cotswold.bench.probe import update_seconds
    from cotswold.api.progress import counting

    geometries, found = recipe.stack_geometries(), []
    with counting("measuring", "stacks") as tally:
        for done, geometry in enumerate(geometries):
            tally(done, len(geometries))
            found.append(update_seconds(geometry, recipe.training.batch))
        tally(len(geometries), len(geometries))
    return found


def _layers(recipe: Recipe) -> tuple[list[Row], Callable[[int], int], str | None]:
    """A row a layer, the bytes that a mini-batch takes, those of the stacks below included, and what is not
    known: without pictures nobody knows the classes, and so the layer of outputs, which then has no row."""
    from cotswold.errors import CotswoldError
    from cotswold.training.networks import planned_layers
    from cotswold.training.restore import geometries_below, needed_bytes
    from cotswold.training.stores import class_count

    unknown, below = None, geometries_below(recipe)
    try:
        classes = class_count(recipe)
    except CotswoldError as error:
        classes, unknown = 1, f"the number of classes, and so the layer of outputs, left out here: {error}"
    plans = planned_layers(recipe, classes, below[-1].output if below else None)
    rows: list[Row] = [
        {
            "layer": number,
            "type": plan.name,
            "output": " x ".join(map(str, plan.output)),
            "parameters": plan.parameters,
            "filter_bytes": 4 * plan.parameters,
            "forward_flops": plan.forward_flops * recipe.training.batch,
        }
        for number, plan in enumerate(plans if unknown is None else plans[:-1], 1)
    ]
    return rows, partial(needed_bytes, recipe, classes), unknown


def _print_table(title: str, rows: list[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in rows[0]:
        table.add_column(_HEADINGS.get(name, name), justify="right", vertical="bottom")
    for row in rows:
        table.add_row(*(_figure(name, value) for name, value in row.items()))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_WIDTH)
    print(title)
    console.print(table)


def _figure(name: str, value: object) -> str:
    """A count or quantity with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not measured"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.2f} MB"
    if name.endswith("_flops"):
        return f"{value / 1e9:,.1f} GFLOP"
    if name.endswith("_seconds"):
        return f"{value:,.3f} s"
    return f"{value:,}"
