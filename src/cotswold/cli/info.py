"""`cotswold info`.

Knows: how to lay a recipe's counts out as a table. Does not know: how they are computed.
"""

from __future__ import annotations

import shlex
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json
from cotswold.cli.support.tables import print_fitting

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


def info(
    recipe: str,
    *,
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    time: bool = True,
    threads: int | None = None,
    json_: Json = False,
) -> None:
    """Show sizes, counts and expected times of a recipe, without training or allocating it.

    For a store: print its contents and its preprocessing.

    Examples:

      cotswold info demo
      cotswold info coates2013-11b
      cotswold info stores/mine
      cotswold info my.toml --set training.batch_size=32 --json

    Parameters
    ----------
    recipe
        A recipe file, the name of a shipped recipe, or a store.
    set
        Override a field, as in training.batch_size=32; may be given again.
    time
        Measure a small part of every stack, or small layers whole, to estimate the time of a step on this
        machine.
    threads
        Threads of that measurement. Default: the recipe's, or all cores granted to this process.
    json_
        Print JSON.
    """
    import cotswold
    from cotswold.cli.support.store_info import show_store
    from cotswold.data.store.manifest import is_store

    if is_store(recipe):
        show_store(recipe, json_)
        return
    found = cotswold.info(recipe, overrides=set or [], time=time, threads=threads, progress=True)
    name, rows, totals, training = found.recipe.name, found.layers, found.totals, found.recipe.training
    if json_:
        print_json("info", {"name": name, "layers": rows, **totals})
        return
    pieces = "portions" if training.strategy == "batch" else "batches"
    _print_table(f"{name}: {training.strategy}, {pieces} of {training.batch_size}", rows)
    if totals.get("largest_batch_that_fits") == 0:
        del totals["fits"], totals["largest_batch_that_fits"]
        totals["fits"] = "no; it does not fit with any batch size"
    for each, value in totals.items():
        label = _HEADINGS.get(each, each).replace("\n", " ").replace("_", " ")
        print(f"{label}: {_figure(each, value)}")
    if training.strategy in ("batch", "downpour"):
        said = f"cotswold train {shlex.quote(recipe)} --dry-run"
        print(f"processes, placement of parameters, bytes, time and cost: {said}")


def _print_table(title: str, rows: list[Row]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in rows[0]:
        table.add_column(_HEADINGS.get(name, name), justify="right", vertical="bottom")
    cells = [[_figure(name, value) for name, value in row.items()] for row in rows]
    for row in cells:
        table.add_row(*row)
    print(title)
    headings = [_HEADINGS.get(name, name).replace("\n", " ") for name in rows[0]]
    print_fitting(table, headings, cells)


def _figure(name: str, value: object) -> str:
    """Return a count or quantity with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not measured"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 1e9:.2f} GB" if value >= 1e8 else f"{value / 1e6:.2f} MB"
    if name.endswith("_flops"):
        return _scaled(value, "FLOP", ("G", 1e9), ("M", 1e6), ("k", 1e3))
    if name.endswith("_seconds"):
        return f"{value:,.3f} s" if value >= 0.1 else _scaled(value, "s", ("m", 1e-3), ("µ", 1e-6))
    return f"{value:,}"


def _scaled(value: float, unit: str, *prefixes: tuple[str, float]) -> str:
    """Return a quantity in the largest unit that it reaches.

    >>> _scaled(2_000_000, "FLOP", ("G", 1e9), ("M", 1e6))
    '2.0 MFLOP'
    """
    for prefix, size in prefixes:
        if value >= size:
            return f"{value / size:,.1f} {prefix}{unit}"
    return f"{value:g} {unit}"
