"""`cotswold simulate`.

Knows: the arguments of the command, the layout of a prediction. Does not know: how it is computed.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cotswold.cli.support.evaluation_estimates import show
from cotswold.cli.support.json_output import Json, print_json
from cotswold.cli.support.number_lists import numbers_of
from cotswold.cli.support.tables import table

if TYPE_CHECKING:
    from cotswold.simulate import Prediction

Row = dict[str, object]
_OPERATIONS = ("Wx", "W'x", "δx'", "update", "pool", "pool'", "norm", "norm'", "residual", "maps", "pack")
_RANKS = "--ranks must be a number of ranks, as in 4, or several, as in 1,4,16"


def simulate(
    cluster: str | None = None,
    recipe: str | None = None,
    *,
    ranks: str | None = None,
    grid: str = "auto",
    set: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    samples: int | None = None,
    outputs: int | None = None,
    explain: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> None:
    """Predict the time, bytes and cost of a step, or an evaluation, on a cluster that is not available.

    Bytes and FLOPs come from the plans that a mesh uses to communicate and compute; nothing is trained. For
    `greedy`, each line is the step of one stack on top of those below; for `joint`, of all stacks; for
    `batch`, one evaluation of value and gradient over the training set; for `downpour`, a step of one replica
    that is partitioned over a grid. With mesh.replicas it is the step of all data-parallel replicas, each on
    a grid. `cotswold train RECIPE --dry-run` counts the bytes that replicas push and
    pull.

    Examples:

      cotswold simulate --list
      cotswold simulate --explain
      cotswold simulate coates2013 coates2013-11b
      cotswold simulate coates2013 coates2013-1.8b --ranks 1,4,16,64
      cotswold simulate ethernet faces --set training.strategy=joint
      cotswold simulate mine.toml faces --grid 2x2 --json
      cotswold simulate bunyip2000 bunyip-japanese-ocr --ranks 24,96,194 \\
        --samples 9264000 --outputs 3203

    Parameters
    ----------
    cluster
        A cluster's TOML file or the name of a shipped cluster.
    recipe
        A recipe file or the name of a shipped recipe; a supervised one is assumed to have ten classes.
    ranks
        Number of ranks (for batch: workers), or several, as in 1,4,16. Default: all devices.
    grid
        Ranks down and across, as in 2x2; auto tries all grids and takes the fastest.
    set
        Override a field of the recipe, as in training.batch_size=32; may be given again.
    list_
        List the shipped clusters and the sources of their figures.
    samples
        For batch: number of training samples. Default: read from the recipe's data.
    outputs
        For batch: number of classes or regression targets. Default: read from the recipe's data.
    explain
        Explain every field of a cluster file: meaning, type, unit and default.
    json_
        Print JSON.
    """
    import cotswold
    from cotswold.errors import UserError

    if (list_ or explain) and (cluster, recipe, ranks) != (None, None, None):
        raise UserError("--list and --explain take no other arguments; leave them out")
    if list_:
        _list(json_)
        return
    if explain:
        from cotswold.recipe import explain as explained
        from cotswold.simulate import Cluster

        print(explained(root=Cluster))
        return
    if cluster is None or recipe is None:
        raise UserError("simulate needs a cluster and a recipe; cotswold simulate --list shows the clusters")
    from cotswold.recipe import load

    counts = numbers_of(ranks, _RANKS) or None
    if load(recipe, set or []).training.strategy == "batch":
        if grid != "auto":
            raise UserError(f"--grid {grid}: strategy batch has workers instead of a grid; use --ranks")
        found_all = cotswold.predict_evaluations(
            cluster,
            recipe,
            workers=counts,
            samples=samples,
            outputs=outputs,
            overrides=set or [],
            progress=True,
        )
        show(found_all, json_)
        return
    if (samples, outputs) != (None, None):
        raise UserError("--samples and --outputs are for strategy batch; leave them out")
    predicted = cotswold.predict_updates(
        cluster, recipe, ranks=counts, grid=grid, overrides=set or [], progress=True
    )
    described, chosen, found = predicted.cluster, predicted.recipe, predicted.updates
    if json_:
        predictions = [{"stack": stack, **each.as_dict()} for stack, each in found]
        print_json("simulate", {"recipe": chosen.name, "updates": predictions})
        return
    words = f"{chosen.name}, {chosen.training.strategy}, batches of {chosen.training.batch_size}"
    what = "one step of one replica" if chosen.training.strategy == "downpour" else "one step"
    table(f"{words}, on {described.name}: {what}", [_row(*each) for each in found], sections="grid")
    table("milliseconds per rank, by operation", [_operations(*each) for each in found], sections="grid")
    if not all(prediction.fits for _, prediction in found):
        host = described.host_memory_gb
        shared = "" if host is None else f", or than {host:g} GB of a host for all its devices"
        print(f"* more than {described.device.memory_gb:g} GB of a device{shared}")


def _row(stack: str, found: Prediction) -> Row:
    def part(seconds: float) -> str:
        return f"{100 * seconds / found.seconds:.1f} %"

    hidden, dollars, cents = found.hidden_part, found.dollars_per_thousand_updates, found.cents_per_mflops
    row: Row = {
        "grid": found.grid,
        "stack": stack,
        "milliseconds": f"{1e3 * found.seconds:,.3f}",
        "computing": part(found.compute_seconds),
        "waiting for messages": part(found.exposed_seconds),
        "waiting for ranks": part(found.imbalance_seconds),
        "messages hidden": "" if hidden is None else f"{100 * hidden:.0f} %",
        "MB on the wire": f"{found.wire_bytes / 1e6:,.1f}",
        "GFLOP": f"{found.flops / 1e9:,.1f}",
        "of peak": f"{100 * found.efficiency:.1f} %",
        "GB per rank": f"{found.rank_bytes / 1e9:,.2f}{'' if found.fits else ' *'}",
    }
    if dollars is not None:
        row["$ per 1000 steps"] = f"{dollars:,.3f}"
    if cents is not None:
        row["cents per MFLOP/s"] = f"{cents:,.3f}"
    return row


def _operations(stack: str, found: Prediction) -> Row:
    named = {name: f"{1e3 * seconds:,.3f}" for name, seconds in found.operations.items()}
    row: Row = {"grid": found.grid, "stack": stack}
    return row | {name: named.get(name, "") for name in _OPERATIONS}


def _list(json_: bool) -> None:
    from cotswold.simulate import load_cluster, shipped_clusters

    clusters = {name: load_cluster(name) for name in shipped_clusters()}
    if json_:
        print_json(
            "simulate.list", {"clusters": {name: each.model_dump() for name, each in clusters.items()}}
        )
        return
    for name, each in clusters.items():
        print(f"{name}: {each.hosts} x {each.devices} {each.device.name}")
        print(textwrap.fill(" ".join(each.about.split()), 80, initial_indent="  ", subsequent_indent="  "))
