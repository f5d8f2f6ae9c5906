"""Replicas and a parameter server on two cores, compared with isolated processes; one replica slow, one
killed.

Knows: the command's options, the order of the cells, the bars. Does not know: how a cell is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from lib.cells import Cells, number
from lib.command import Json, Overrides, main
from lib.downpour.speeds import Speeds
from lib.mnist import recipe_here

BARS = {"two": 0.9, "quarter": 0.95, "killed": 0.97}
OF = {
    "two": "two isolated processes",
    "quarter": "the sum of both speeds",
    "killed": "the undisturbed throughput",
}


def downpour(
    recipe: str = "adam-mnist",
    *,
    case: Annotated[list[str] | None, Parameter(negative=())] = None,
    rounds: int = 5,
    seconds: float = 15.0,
    every: float = 30.0,
    minutes: float = 30.0,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure samples per second of two replicas with a server and their data, on two cores.

    A cell is one round of a case: the case and its reference, one directly after the other. Each is kept when
    it is finished; the same command resumes. Cases: `two` is compared with two isolated processes. `quarter`,
    with one replica at a quarter of its speed (a quota of processor time, which needs root), is compared with
    the sum of both speeds. `killed`, with a replica killed at intervals and restarted, is compared with an
    equal time without kills.

    Example: python benchmarks/downpour.py --minutes 25

    Parameters
    ----------
    recipe
        Recipe with labels; without MNIST, adam-mnist uses random images of the same shape.
    case
        two, quarter or killed; may be given again [all].
    rounds
        Cells for each case.
    seconds
        Seconds for which each side of a cell is measured.
    every
        Seconds between kills; a cell of `killed` has two, and an equal time without kills.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of the recipe, such as training.push_every=4; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for downpour.json (the finished cells).
    json_
        Print JSON.
    """
    overrides = ["training.strategy=downpour", "training.epochs=1000000", "cluster.workers=2", *(set or [])]
    read = recipe_here(recipe, stores, overrides)
    cells = Cells(
        "downpour", out, minutes, summary, recipe=read.name, set=set or [], seconds=seconds, every=every
    )
    cases = [name for name in BARS if case is None or name in case]
    require_positive(len(cases), "--case")
    speeds = Speeds(read, open_store(read, stores))
    measures: dict[str, Callable[[], Document]] = {
        "two": lambda: speeds.two(seconds),
        "quarter": lambda: speeds.slowed(0.25, seconds),
        "killed": lambda: speeds.killed(every),
    }

    def plan() -> Iterator[tuple[str, Callable[[], Document]]]:
        for turn in range(require_positive(rounds, "--rounds")):
            for name in cases:
                yield f"{name} {turn}", measures[name]

    with speeds:
        cells.run(plan())
    found = cells.leave()
    write_result(found, "downpour", None, json_)
    if not json_:
        table("samples per second", rows(found))


def summary(cells: dict[str, Document]) -> Document:
    """Return the ratios of each case and their median."""
    found: Document = {}
    for name, bar in BARS.items():
        own = [cell for key, cell in cells.items() if key.startswith(f"{name} ")]
        if own:
            ratios = [number(cell, "ratio") for cell in own]
            found[name] = {"of": OF[name], "ratio": rounded(median(ratios)), "bar": bar, "ratios": ratios}
    return found


def rows(found: Document) -> list[Document]:
    """Return the table of a summary."""
    told = found["summary"]
    assert isinstance(told, dict)
    return [
        {
            "case": name,
            "ratio": each["ratio"],
            "of": each["of"],
            "bar": each["bar"],
            "rounds": len(each["ratios"]),
        }
        for name, each in told.items()
    ]


if __name__ == "__main__":
    main(downpour)
