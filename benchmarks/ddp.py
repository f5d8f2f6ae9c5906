"""Time to an accuracy: replicas beside DistributedDataParallel and PyTorch's Hogwild, on two processes.

Knows: the words of the command, which cell comes when, the bars. Does not know: how anybody trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.figures import at_least_one, leave, table
from cotswold.training import open_store
from measures.cells import Cells, Plan
from measures.command import Json, Overrides, main, rows
from measures.downpour.racing import NAMES, OURS, raced
from measures.downpour.rivals import Race
from measures.mnist import recipe_here

SHARES = {"equal": 1.0, "half": 0.5}
BARS = {"equal": 1.05, "half": 0.7}
BESIDE = "DistributedDataParallel"
TUNING_SEED = 1_000
"""None of those that are compared."""


def ddp(
    recipe: str = "adam-mnist",
    *,
    rate: Annotated[list[float] | None, Parameter(negative=())] = None,
    seeds: int = 10,
    momentum: float = 0.9,
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

    Three rivals: replicas behind a parameter server and DistributedDataParallel over gloo, both with
    momentum, and Hogwild on shared memory as in PyTorch's example (momentum 0.5, of each process its own).
    All read the same rows in the same way. First each is tuned: one run a learning rate, of a seed that is not used again, as many runs for each; the rate that
    gets there first is taken. Then the seeds, rivals in turns: `equal`, and `half`, where the second process
    has half a core (a quota, as root). Parameters are kept on the way and judged afterwards, so that
    validation takes nobody's time. A cell is one run; each is kept when it is finished; the same command
    goes on.

    Example: python benchmarks/ddp.py --minutes 120

    Parameters
    ----------
    recipe
        A recipe with labels; adam-mnist without MNIST has drawn pictures of the same shape.
    rate
        Learning rates that everybody is tuned over; 0.0125, 0.025, 0.05 and 0.1 by default. May be given
        again.
    seeds
        Of initial weights and of the order of samples.
    momentum
        Of servers and of DistributedDataParallel; 0 is plain SGD.
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
    rates = rate or [0.0125, 0.025, 0.05, 0.1]
    rule = ["training.rule=momentum", f"training.momentum={momentum}"] if momentum else []
    overrides = ["training.strategy=downpour", "training.epochs=1000000", *rule, *(set or [])]
    read = recipe_here(recipe, stores, overrides)
    settings = {"rates": rates, "momentum": momentum, "epochs": epochs, "accuracy": accuracy, "kept_every": kept_every}
    cells = Cells("ddp", out, minutes, summary, recipe=read.name, set=set or [], **settings)
    store = open_store(read, stores)
    at_least_one(seeds, "--seeds")

    with TemporaryDirectory() as folder:

        def cell(name: str, its_rate: float, seed: int, share: float) -> Document:
            samples, batch = round(epochs * store.splits["train"]), read.training.batch_size
            race = Race(its_rate, seed, samples, kept_every, batch, share=share, momentum=momentum)
            return raced(name, read, store, Path(folder), race, accuracy)

        def plan() -> Plan:
            for each in rates:
                for name in NAMES:
                    yield f"tune, {name}, {each:g}", partial(cell, name, each, TUNING_SEED, 1.0)
            best = tuned(cells.found)
            for seed in range(seeds):
                for case, share in SHARES.items():
                    for name in NAMES[seed % 3 :] + NAMES[: seed % 3]:
                        yield f"{case}, {name}, {seed}", partial(cell, name, best[name], seed, share)

        cells.run(plan())
    found = cells.leave()
    leave(found, "ddp", None, json_)
    told = found["summary"]
    assert isinstance(told, dict)
    if not json_ and told["rows"]:
        table(f"seconds to {accuracy:.1%} of validation samples", rows(told["rows"]))


def tuned(cells: dict[str, Document]) -> dict[str, float]:
    """The rate of each rival that got there first; the most accurate where none did."""
    found: dict[str, float] = {}
    for name in NAMES:
        own = [cell for key, cell in cells.items() if key.startswith(f"tune, {name},")]
        if own:
            best = min(own, key=lambda cell: (seconds(cell), -float(str(cell["best_accuracy"]))))
            found[name] = float(str(best["rate"]))
    return found


def seconds(cell: Document) -> float:
    """To the accuracy; infinite where it was not reached."""
    return inf if cell["seconds"] is None else float(str(cell["seconds"]))


def summary(cells: dict[str, Document]) -> Document:
    """Medians over seeds, and of the ratios to the time of DistributedDataParallel, seed by seed."""
    return {"rates": tuned(cells), "rows": [row for case in SHARES for row in _rows(cells, case)]}


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
