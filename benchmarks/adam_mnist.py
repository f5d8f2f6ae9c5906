"""Table 1 of Chilimbi et al. 2014: MNIST, synchronous and asynchronous, and with replicas killed.

Knows: the command's options, the order of the cells, the comparison. Does not know: how replicas learn.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from lib.cells import Cells, Plan
from lib.command import Json, Overrides, main, rows
from lib.downpour.accuracies import Accurate
from lib.mnist import recipe_here

PAPER = {"synchronous": 0.9939, "asynchronous": 0.9963}
CASES = ("accuracy", "killed")
TUNING_SEED = 1_000
BAR_POINTS = 0.1


def adam_mnist(
    recipe: str = "adam-mnist",
    *,
    case: Annotated[list[str] | None, Parameter(negative=())] = None,
    rate: Annotated[list[float] | None, Parameter(negative=())] = None,
    epochs: int = 20,
    seeds: int = 5,
    pairs: int = 12,
    seconds: float = 180.0,
    every: float = 30.0,
    minutes: float = 120.0,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure accuracy on test samples. Every choice is made on validation samples.

    `accuracy`: ordinary SGD (one replica without overlap) compared with two asynchronous replicas. First each
    is tuned: one run for each rate, with a seed that is not used again. Then the seeds follow, alternating.
    The test accuracy is that of the epoch with the best validation accuracy. The paper has 99.39 % and 99.63
    %. `killed`: pairs of runs of equal length with the same seed; in one, a replica is killed at intervals
    and restarted. A cell is one run; each is kept when it is finished, and the same command resumes.

    Examples:

      python benchmarks/adam_mnist.py --case accuracy --minutes 60
      python benchmarks/adam_mnist.py --case accuracy --case killed --minutes 150

    Parameters
    ----------
    recipe
        Recipe with labels; without MNIST, adam-mnist uses random images of the same shape.
    case
        accuracy or killed; may be given again [both].
    rate
        Learning rate to choose from; may be given again [0.025, 0.05 and 0.1].
    epochs
        Epochs of a run of `accuracy`.
    seeds
        Runs at the best rate.
    pairs
        Pairs of runs of `killed`, at the best rate of two replicas.
    seconds
        Seconds of a run of `killed`.
    every
        Seconds between kills.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of the recipe, such as training.update_rule=momentum; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for adam-mnist.json (the finished cells).
    json_
        Print JSON.
    """
    rates = rate or [0.025, 0.05, 0.1]
    read = recipe_here(
        recipe, stores, ["training.strategy=downpour", "training.epochs=1000000", *(set or [])]
    )
    cases = [name for name in CASES if case is None or name in case]
    require_positive(min(len(cases), seeds, pairs), "--case" if not cases else "--seeds and --pairs")
    settings = {"rates": rates, "epochs": epochs, "seconds": seconds, "every": every}
    cells = Cells("adam-mnist", out, minutes, summary, recipe=read.name, set=set or [], **settings)
    store = open_store(read, stores)

    with TemporaryDirectory() as folder:
        accurate = Accurate(read, store, Path(folder))

        def tuning(name: str) -> Plan:
            for each in rates:
                words = (name == "synchronous", each, TUNING_SEED, epochs)
                yield f"tune, {name}, {each:g}", partial(accurate.learnt, *words)

        def plan() -> Plan:
            yield from tuning("asynchronous")
            both = tuned(cells.found, "asynchronous")
            if "accuracy" in cases:
                yield from tuning("synchronous")
                best = {"asynchronous": both, "synchronous": tuned(cells.found, "synchronous")}
                for seed in range(seeds):
                    for name in sorted(PAPER, reverse=bool(seed % 2)):
                        words = (name == "synchronous", best[name], seed, epochs)
                        yield f"{name}, {seed}", partial(accurate.learnt, *words)
            if "killed" in cases:
                for pair in range(pairs):
                    for name in sorted(("undisturbed", "killed"), reverse=bool(pair % 2)):
                        kills = every if name == "killed" else None
                        yield f"{name}, {pair}", partial(accurate.after, seconds, both, pair, kills)

        cells.run(plan())
    found = cells.leave()
    write_result(found, "adam-mnist", None, json_)
    told: Any = found["summary"]
    if not json_ and told["rows"]:
        table(f"{read.name}: test samples", rows(told["rows"]))
    if not json_ and told["killed"]:
        table("with replicas killed, compared with runs without kills", [told["killed"]])


def tuned(cells: dict[str, Document], name: str) -> float:
    """Return the rate with the best validation accuracy."""
    own: list[Any] = [cell for key, cell in cells.items() if key.startswith(f"tune, {name},")]
    return float(max(own, key=lambda cell: cell["validation"])["rate"])


def summary(cells: dict[str, Document]) -> Document:
    """Return means over seeds next to the paper's figures, and the mean difference that kills make."""
    found: list[Document] = []
    for name, paper in PAPER.items():
        own: list[Any] = [cell for key, cell in cells.items() if key.startswith(f"{name},")]
        if own:
            tests = [cell["test"] for cell in own]
            found.append(
                {
                    "training": name,
                    "rate": own[0]["rate"],
                    "test": rounded(mean(tests)),
                    "least": min(tests),
                    "greatest": max(tests),
                    "validation": rounded(mean(cell["validation"] for cell in own)),
                    "seeds": len(own),
                    "paper": paper,
                }
            )
    return {"rows": found, "killed": _killed(cells)}


def _killed(cells: dict[str, Any]) -> Document | None:
    """Return the difference in percentage points; ``error`` is the standard error of the mean over pairs."""
    pairs = [
        (cell, cells[f"undisturbed, {key.rpartition(', ')[2]}"])
        for key, cell in cells.items()
        if key.startswith("killed,") and f"undisturbed, {key.rpartition(', ')[2]}" in cells
    ]
    if not pairs:
        return None
    points = [100 * (killed["test"] - whole["test"]) for killed, whole in pairs]
    return {
        "points": rounded(mean(points)),
        "error": rounded(stdev(points) / sqrt(len(points))) if len(points) > 1 else None,
        "bar": BAR_POINTS,
        "pairs": len(pairs),
        "kills": sum(killed["kills"] for killed, _ in pairs),
        "throughput": rounded(
            mean(killed["samples_a_second"] / whole["samples_a_second"] for killed, whole in pairs)
        ),
    }


if __name__ == "__main__":
    main(adam_mnist)
