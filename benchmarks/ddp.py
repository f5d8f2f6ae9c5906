"""Time to an accuracy: replicas beside DistributedDataParallel and PyTorch's Hogwild, on two processes.

Knows: the words of the command, which cell comes when, the bars. Does not know: how anybody trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from lib.cells import Cells, Plan, number
from lib.command import Json, Overrides, check_unvaried, main, rows
from lib.downpour.baselines import Race
from lib.downpour.time_to_accuracy import NAMES, OURS, raced
from lib.mnist import recipe_here

SHARES = {"equal": 1.0, "half": 0.5}
BARS = {"equal": 1.05, "half": 0.7}
BESIDE = "DistributedDataParallel"
TUNING_SEED = 1_000
"""None of those that are compared."""
Tuning = tuple[float, float]
"""Rate and momentum."""


def ddp(
    recipe: str = "adam-mnist",
    *,
    rate: Annotated[list[float] | None, Parameter(negative=())] = None,
    seeds: int = 10,
    momentum: Annotated[list[float] | None, Parameter(negative=())] = None,
    epochs: float = 6.0,
    accuracy: float = 0.99,
    kept_every: int = 2_700,
    minutes: float = 90.0,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Seconds until so many validation samples are classified rightly, by two processes of one thread.

    Three rivals: replicas behind a parameter server, DistributedDataParallel over gloo, and Hogwild on shared
    memory as in PyTorch's example. All read the same rows in the same way. First each is tuned: one run a
    learning rate and momentum, of a seed that is not used again, as many runs for each; what gets there first
    is taken. Then the seeds, rivals in turns: `equal`, and `half`, where the second process has half a core
    (a quota, as root). Parameters are kept on the way and judged afterwards, so that
    validation takes nobody's time. A cell is one run; each is kept when it is finished; the same command
    goes on.

    Example: python benchmarks/ddp.py --minutes 120

    Parameters
    ----------
    recipe
        A recipe with labels; adam-mnist without MNIST has drawn images of the same shape.
    rate
        Learning rates that everybody is tuned over; 0.0125, 0.025, 0.05 and 0.1 by default. May be given
        again.
    seeds
        Of initial weights and of the order of samples.
    momentum
        Those that everybody is tuned over with each rate; 0 and 0.9 by default. May be given again.
    epochs
        How long a run is.
    accuracy
        Of validation samples.
    kept_every
        Samples between two looks at the parameters.
    minutes
        No cell begins that would end later.
    set
        Overrides a field of the replicas' recipe, such as training.push_every=2; may be given again.
    stores
        Where samples are prepared.
    out
        A directory for ddp.json, which has the finished cells.
    json_
        Print JSON.
    """
    rates, momenta = rate or [0.0125, 0.025, 0.05, 0.1], momentum or [0.0, 0.9]
    overrides = ["training.strategy=downpour", "training.epochs=1000000", *(set or [])]
    read = recipe_here(recipe, stores, overrides)
    check_unvaried(read, "a rival here")
    settings = {"rates": rates, "momenta": momenta, "epochs": epochs, "kept_every": kept_every}
    cells = Cells(
        "ddp", out, minutes, summary, recipe=read.name, set=set or [], accuracy=accuracy, **settings
    )
    store = open_store(read, stores)
    require_positive(seeds, "--seeds")

    with TemporaryDirectory() as folder:

        def cell(name: str, tuning: Tuning, seed: int, share: float) -> Document:
            samples, batch = round(epochs * store.splits["train"]), read.training.batch_size
            its_rate, its_momentum = tuning
            race = Race(its_rate, seed, samples, kept_every, batch, share=share, momentum=its_momentum)
            return raced(name, read, store, Path(folder), race, accuracy)

        def plan() -> Plan:
            for tuning in product(rates, momenta):
                for name in NAMES:
                    key = f"tune, {name}, {tuning[0]:g}, {tuning[1]:g}"
                    yield key, partial(cell, name, tuning, TUNING_SEED, 1.0)
            best = tuned(cells.found)
            for seed in range(seeds):
                for case, share in SHARES.items():
                    for name in NAMES[seed % 3 :] + NAMES[: seed % 3]:
                        yield f"{case}, {name}, {seed}", partial(cell, name, best[name], seed, share)

        cells.run(plan())
    found = cells.leave()
    write_result(found, "ddp", None, json_)
    told = found["summary"]
    assert isinstance(told, dict)
    if not json_ and told["rows"]:
        table(f"seconds to {accuracy:.1%} of validation samples", rows(told["rows"]))


def tuned(cells: dict[str, Document]) -> dict[str, Tuning]:
    """Rate and momentum with which each rival got there first; the most accurate where none did."""
    found: dict[str, Tuning] = {}
    for name in NAMES:
        own = [cell for key, cell in cells.items() if key.startswith(f"tune, {name},")]
        if own:
            best = min(own, key=lambda cell: (seconds(cell), -number(cell, "best_accuracy")))
            found[name] = number(best, "rate"), number(best, "momentum")
    return found


def seconds(cell: Document) -> float:
    """To the accuracy; infinite where it was not reached."""
    return inf if cell["seconds"] is None else float(str(cell["seconds"]))


def summary(cells: dict[str, Document]) -> Document:
    """Medians over seeds, and of the ratios to the time of DistributedDataParallel, seed by seed."""
    return {"tuned": tuned(cells), "rows": [row for case in SHARES for row in _rows(cells, case)]}


def _rows(cells: dict[str, Document], case: str) -> Iterator[Document]:
    of = {
        name: {
            key.rpartition(", ")[2]: seconds(cell)
            for key, cell in cells.items()
            if key.startswith(f"{case}, {name},")
        }
        for name in NAMES
    }
    for name, found in of.items():
        both = [seed for seed in found if seed in of[BESIDE]]
        if not both:
            continue
        ratios = [found[seed] / of[BESIDE][seed] if of[BESIDE][seed] < inf else 0.0 for seed in both]
        yield {
            "case": case,
            "who": name,
            "seconds": _finite(median(found.values())),
            "reached": f"{sum(each < inf for each in found.values())} of {len(found)}",
            "of_ddp": _finite(median(ratios)),
            "bar": BARS[case] if name == OURS else None,
        }


def _finite(value: float) -> float | None:
    return rounded(value) if value < inf else None


if __name__ == "__main__":
    main(ddp)
