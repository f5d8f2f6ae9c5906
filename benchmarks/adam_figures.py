"""Figures 8 and 11 of Chilimbi et al. 2014: connections per second by cores, speed by replicas.

Knows: the command's options, the order of the cells. Does not know: how anything is measured or simulated.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cotswold.api.ranks import cores
from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from lib.cells import Cells, Plan
from lib.command import Json, main, rows
from lib.downpour.plots import draw_adam_figures
from lib.downpour.scaling import ScalingCase, simulated_speed
from lib.mnist import recipe_here

BEYOND = (1, 2, 4, 8, 16, 32, 64)
LINK_BYTES = 1.25e9
"""Bytes per second of a link of 10 Gbit/s."""


def adam_figures(
    recipe: str = "adam-mnist",
    *,
    rounds: int = 3,
    seconds: float = 15.0,
    minutes: float = 15.0,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure connections per second of processes on one copy of the weights, and samples per second of
    replicas.

    Both are measured up to the number of cores, and extrapolated beyond. Figure 8 uses the paper's count,
    connections times samples per second. Beyond the measured range it assumes that every core adds the speed
    of a process that runs next to the others. Figure 11 simulates replicas and one server process, each on
    its own core, event by event, with the processor time of a replica's step and of the server's step as
    measured with one replica: once within a host, once with a link of 10 Gbit/s to the server. As a check,
    the same times predict the speed of the replicas on this machine's cores. A cell is one round of one
    number; each is kept when it is finished, and the same command resumes.

    Example: python benchmarks/adam_figures.py --minutes 10

    Parameters
    ----------
    recipe
        Recipe with labels; without MNIST, adam-mnist uses random images of the same shape.
    rounds
        Cells for each number of cores or replicas.
    seconds
        Seconds for which replicas are measured; processes on one copy compute about as long.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    stores
        Directory of prepared samples.
    out
        Directory for adam-figures.json (the finished cells) and adam-figures.svg.
    json_
        Print JSON.
    """
    read = recipe_here(recipe, stores, ["training.strategy=downpour", "training.epochs=1000000"])
    cells = Cells("adam-figures", out, minutes, summary, recipe=read.name, seconds=seconds, cores=cores())
    store = open_store(read, stores)
    with TemporaryDirectory() as folder:
        growing = ScalingCase(read, store, Path(folder), seconds)

        def plan() -> Plan:
            for turn in range(require_positive(rounds, "--rounds")):
                for count in range(1, cores() + 1):
                    yield f"figure 8; {count}; {turn}", partial(growing.on_one_copy, count)
                    yield f"figure 11; {count}; {turn}", partial(growing.replicas, count)

        cells.run(plan())
    found = cells.leave()
    write_result(found, "adam-figures", None, json_)
    told: Any = found["summary"]
    draw_adam_figures(told, out)
    if not json_:
        for name in ("figure 8", "figure 11"):
            if told[name]:
                table(name, rows(told[name]))


def summary(cells: dict[str, Document]) -> Document:
    """Return medians of the measured cells, and the figures extrapolated from them."""
    return {"figure 8": _figure_8(cells), "figure 11": _figure_11(cells)}


def _figure_8(cells: dict[str, Any]) -> list[Document]:
    measured = _medians(cells, "figure 8", "billion_connections_a_second")
    if not measured:
        return []
    most = max(measured)
    return [
        {
            "cores": count,
            "billion_connections_a_second": rounded(measured.get(count, measured[most] * count / most)),
            "is": "measured" if count in measured else "as many times as cores",
        }
        for count in sorted({*measured, *BEYOND})
    ]


def _figure_11(cells: dict[str, Any]) -> list[Document]:
    measured = _medians(cells, "figure 11", "samples_a_second")
    alone = [cell for key, cell in cells.items() if key.startswith("figure 11; 1;")]
    if not alone:
        return []
    replica, server, rest = (
        median(cell["step_ms"][name] for cell in alone) / 1e3
        for name in ("replicas, all threads", "servers", "coordinator")
    )
    batch, own_cores = alone[0]["batch"], alone[0]["cores"]
    link = 2 * alone[0]["push_bytes"] / LINK_BYTES
    return [
        {
            "replicas": count,
            "measured": measured.get(count),
            "predicted_here": rounded(batch * min(count / replica, own_cores / (replica + server + rest)))
            if count <= own_cores
            else None,
            "simulated": rounded(simulated_speed(count, batch, replica, server)),
            "simulated_10_gigabit": rounded(simulated_speed(count, batch, replica, max(server, link))),
        }
        for count in BEYOND
    ]


def _medians(cells: dict[str, Any], figure: str, name: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for key, cell in cells.items():
        which, count, _ = key.split("; ")
        if which == figure:
            found.setdefault(int(count), []).append(cell[name])
    return {count: rounded(median(each)) for count, each in found.items()}


if __name__ == "__main__":
    main(adam_figures)
