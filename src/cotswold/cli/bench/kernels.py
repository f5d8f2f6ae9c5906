"""`cotswold bench kernels`: every operation compared with its peak, baselines and target.

Knows: the arguments of the command, its table, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json
from cotswold.cli.support.tables import (
    command,
    create_result_folder,
    require_positive,
    table,
    thread_counts,
    write,
    write_result,
)

if TYPE_CHECKING:
    from cotswold.bench.kernels.shapes import Shape
    from cotswold.bench.measure import Document

Flag = Annotated[bool, Parameter(negative=())]
GroupNames = Annotated[list[str] | None, Parameter(negative=())]
EXPLAINED_IMAGES = 96


def kernels(
    *,
    threads: str | None = None,
    only: GroupNames = None,
    match: str = "",
    quick: Flag = False,
    explain: Flag = False,
    layer: str | None = None,
    images: int | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Compare every operation with the machine's peak and with common alternatives.

    The peak for products is the fastest dense float32 product of this run (torch.mm,
    oneDNN, NumPy); for memory-bound operations it is y += x of the same number of
    bytes. Baselines: unfold + einsum, PyTorch's autograd, JAX if it is installed.
    Each row shows its target and whether it is met. It takes some minutes per number
    of threads; the output file always has the results so far.

    Examples:

      cotswold bench kernels --quick

      cotswold bench kernels --threads 1,2 --out benchmarks/results

      cotswold bench kernels --only untied --only few --match "5 x 5"

      cotswold bench kernels --explain --match faces

      cotswold bench kernels --explain --layer 3,60,60,20,4,4,4,8 --images 96

    Parameters
    ----------
    threads
        Numbers of threads, one run each, as in 1,2. Default: all cores.
    only
        A group: paper, recipe, untied, few, dense, curve, smoothing, bfloat16,
        memory, start; may be given again.
    match
        Only names that contain this text.
    quick
        Small shapes, few rounds: to try the command, not for results.
    explain
        Show which kernel runs for each shape, and why; measures no baselines.
    layer
        With --explain, one shape: C,H,W,FIELD,STRIDE,ROWS,COLUMNS,DEPTH.
    images
        The batch size of that shape. Default: 96.
    out
        A directory for kernels.json (every sample), kernels.svg and
        kernels-curve.svg.
    json_
        Print JSON.
    """
    from cotswold.errors import UserError

    counts = thread_counts(threads)
    if layer is None and images is not None:
        raise UserError("--images needs --layer; the other shapes have fixed batch sizes")
    if (explain or layer is not None) and out is not None:
        raise UserError("--explain writes no files; remove --out, or use --json")
    if explain or layer is not None:
        _explain(
            counts[-1],
            _shapes(
                only or [],
                match,
                layer,
                require_positive(EXPLAINED_IMAGES if images is None else images, "--images"),
            ),
            json_,
        )
        return
    from cotswold.bench import measure_kernels
    from cotswold.ui.terminal import write_note

    create_result_folder(out)
    found = measure_kernels(
        threads=counts,
        only=only or [],
        match=match,
        quick=quick,
        command=command(),
        say=write_note,
        write=lambda so_far: write(so_far, "kernels", out),
    )
    write_result(found, "kernels", out, json_)
    if out is not None:
        from cotswold.bench.kernels.plots import PLOTS

        for name, draw in PLOTS.items():
            draw(found, out / name)
    if not json_:
        print_rows(found)


def _shapes(only: Sequence[str], match: str, layer: str | None, images: int) -> list[Shape]:
    from cotswold.bench.case import groups_of
    from cotswold.bench.kernels.cases import GROUPS, explainable
    from cotswold.bench.kernels.explain import described
    from cotswold.errors import UserError

    if layer is not None:
        return [described(layer, images)]
    groups = groups_of(only, GROUPS)
    every = explainable()
    found = [one for one in every if one.group in groups and match.lower() in one.name.lower()]
    if not found:
        kept = ", ".join(dict.fromkeys(one.group for one in every))
        raise UserError(
            f"no shape matches; groups with shapes are {kept}, an example of a name is {every[0].name}"
        )
    return found


def _explain(threads: int, shapes: Sequence[Shape], json_: bool) -> None:
    from dataclasses import asdict

    import torch

    from cotswold.bench.kernels.explain import backend, explained
    from cotswold.ui.terminal import write_note

    torch.set_num_threads(threads)
    about = backend()
    found = []
    for number, shape in enumerate(shapes, 1):
        write_note(f"{number} of {len(shapes)}: {shape.name}")
        found += explained(shape)
    if json_:
        print_json("bench.explain", {"backend": asdict(about), "products": [asdict(one) for one in found]})
        return
    print(f"backend: {about.name}, because {about.reason}")
    print(f"processor: {about.processor}; vectors: {about.vector}")
    print(f"kernel choices and code are cached in: {about.cache}")
    heading = "measured candidates of its class, ms"
    rows = [
        {
            "shape": f"{one.shape}, {one.images}",
            "product": one.product,
            "kernel": one.kind,
            "runs as": one.tile,
            "lanes filled": "" if one.lanes_filled is None else f"{one.lanes_filled:.0%}",
            "why": one.reason,
            heading: "; ".join(f"{name}: {taken:.3g}" for name, taken in one.milliseconds.items()),
        }
        for one in found
    ]
    table("a tile is rows x vectors of results that a kernel sums at a time", rows)


def print_rows(found: Document) -> None:
    """Print the results: one line per verdict, then how many targets are met."""
    every: Any = found["rows"]
    rows = [_line(row, verdict) for row in every for verdict in row["verdicts"]]
    if rows:
        table("medians; ratios per round; on: number of threads", rows, sections="group")
    barred = [verdict for row in every for verdict in row["verdicts"] if verdict["met"] is not None]
    met = sum(verdict["met"] for verdict in barred)
    print(f"{met} of {len(barred)} targets met, in {found['whole_seconds']} s")
    for note in dict.fromkeys(
        f"{row['shape']}, {row['operation']}: {row['note']}" for row in every if row["note"]
    ):
        print(note)


def _line(row: Any, verdict: Any) -> Document:
    """Return a line of the table: our figure, the compared one, and whether the target is met."""
    from cotswold.bench.row import COTSWOLD

    figures = row["figures"]
    shape = f"{row['shape']}, {row['images']}" if row["images"] else row["shape"]
    against = verdict["against"]
    theirs = figures.get(against) or figures.get(f"ceiling, {against}")
    bar = "" if verdict["bar"] is None else f"{verdict['sense']} {verdict['bar']:g}"
    return {
        "group": row["group"],
        "on": row["threads"],
        "shape": shape,
        "operation": row["operation"],
        "ours": f"{_figure(figures[COTSWOLD]['median'])} {row['unit']}",
        "compared with": f"{against} {_figure(theirs['median'])}" if theirs else against,
        "ratio": _figure(verdict["ratio"]["median"]),
        "bar": bar,
        "": {True: "met", False: "missed", None: ""}[verdict["met"]],
    }


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
