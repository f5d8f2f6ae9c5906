"""Time to an accuracy: replicas compared with DistributedDataParallel and PyTorch's Hogwild, two processes
each.

Knows: the command's options, the order of the cells, the bars. Does not know: how the methods train.
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
"""Seed of tuning runs, which no compared run uses."""
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
    """Measure seconds to a validation accuracy, with two processes of one thread each.

    Three methods: replicas behind a parameter server, DistributedDataParallel over gloo, and Hogwild on
    shared memory as in PyTorch's example. All read the same rows in the same way. First each method is tuned:
    one run for each learning rate and momentum, with a seed that is not used again. The pair that reaches the
    accuracy first is taken. Then the seeds follow, methods alternating: `equal`, and `half`, in which the
    second process has half a core (a quota, which needs root). Parameters are saved during a run and
    evaluated afterwards, so that validation costs no training time. A cell is one run; each is kept when it
    is finished, and the same command resumes.

    Example: python benchmarks/ddp.py --minutes 120

    Parameters
    ----------
    recipe
        Recipe with labels; without MNIST, adam-mnist uses random images of the same shape.
    rate
        Learning rate tried for every method; may be given again [0.0125, 0.025, 0.05 and 0.1].
    seeds
        Number of seeds, which choose initial weights and the order of samples.
    momentum
        Momentum tried for every method with each rate; may be given again [0 and 0.9].
    epochs
        Epochs of a run.
    accuracy
        Fraction of validation samples to classify correctly.
    kept_every
        Samples between two saved sets of parameters.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of the replicas' recipe, such as training.push_every=2; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for ddp.json (the finished cells).
    json_
        Print JSON.
    """
    rates, momenta = rate or [0.0125, 0.025, 0.05, 0.1], momentum or [0.0, 0.9]
    overrides = ["training.strategy=downpour", "training.epochs=1000000", *(set or [])]
    read = recipe_here(recipe, stores, overrides)
    check_unvaried(read, "a method compared here")
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
    """Return the rate and momentum with which each method was first, or else the most accurate."""
    found: dict[str, Tuning] = {}
    for name in NAMES:
        own = [cell for key, cell in cells.items() if key.startswith(f"tune, {name},")]
        if own:
            best = min(own, key=lambda cell: (seconds(cell), -number(cell, "best_accuracy")))
            found[name] = number(best, "rate"), number(best, "momentum")
    return found


def seconds(cell: Document) -> float:
    """Return seconds to the accuracy, or infinity if it was not reached."""
    return inf if cell["seconds"] is None else float(str(cell["seconds"]))


def summary(cells: dict[str, Document]) -> Document:
    """Return medians over seeds, and medians of the ratios to DistributedDataParallel, seed by seed."""
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
