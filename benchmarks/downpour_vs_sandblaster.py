"""Figures 4 and 5 of Dean et al. 2012: SGD, Downpour and Sandblaster on speech, from one warm start.

Knows: the command's options, the order of the cells, time to an accuracy. Does not know: how a cell is
trained, plots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cotswold import recipe as recipes
from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.recipe import dump
from cotswold.training import open_store
from lib.cells import Cells, Plan
from lib.command import Json, Overrides, main, rows
from lib.downpour.figure_4 import WAYS, Experiment, Way
from lib.downpour.plots import draw_figure_4

TUNING_SEED = 1_000
SIMULATED = {
    "Downpour, fixed rate": Way("sgd", 2, (0.05, 0.2, 0.8)),
    "Downpour, Adagrad": Way("adagrad", 2, (0.005, 0.02, 0.08)),
}
SIMULATED_REPLICAS = (1, 2, 4, 8, 16, 32, 64)
TRAVEL_STEPS = 0.05
"""Time of a message one way, in steps of a replica."""


def downpour_vs_sandblaster(
    recipe: str = "distbelief-downpour-vs-sandblaster",
    *,
    seconds: float = 60.0,
    seeds: int = 1,
    warm_samples: int = 20_000,
    simulated_epochs: float = 3.0,
    minutes: float = 60.0,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure training and held-out accuracy by seconds and processor time, and time to an accuracy.

    Five ways from one warm start of plain SGD: SGD with one replica, Downpour with a fixed rate, Downpour
    with Adagrad by two and by four replicas, Sandblaster L-BFGS. Rates are tuned on validation samples, three
    runs each. Parameters are saved during a run and evaluated afterwards. Time to an accuracy by number of
    cores is measured on this machine's cores. For more cores, Downpour is simulated event by event with real
    gradients and the measured seconds of a step, tuned in the same way, and marked in the plot. A cell is one
    run; each is kept when it is finished, and the same command resumes.

    Example: python benchmarks/downpour_vs_sandblaster.py --minutes 90

    Parameters
    ----------
    recipe
        Recipe of strategy downpour with labels.
    seconds
        Seconds of a run.
    seeds
        Runs of each way at its best rate.
    warm_samples
        Samples of the warm start by one replica; all ways begin with its parameters.
    simulated_epochs
        Epochs of a simulated run.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of the recipe; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for downpour-vs-sandblaster.json (the finished cells) and its plot.
    json_
        Print JSON.
    """
    read = recipes.load(recipe, set or [])
    require_positive(seeds, "--seeds")
    lengths = {"seconds": seconds, "warm_samples": warm_samples, "simulated_epochs": simulated_epochs}
    name = "downpour-vs-sandblaster"
    cells = Cells(name, out, minutes, summary, recipe=read.name, set=set or [], **lengths)
    store = open_store(read, stores)
    samples = round(simulated_epochs * store.splits["train"])

    with TemporaryDirectory() as folder:
        experiment = Experiment(dump(read), store, Path(folder), warm_samples, seconds)

        def plan() -> Plan:
            for place in range(max(len(way.rates) for way in WAYS.values())):
                for key, way in WAYS.items():
                    for rate in way.rates[place : place + 1]:
                        yield f"tune; {key}; {rate:g}", partial(experiment.cell, way, rate, TUNING_SEED)
            for seed in range(seeds):
                for key, way in WAYS.items():
                    best = tuned(cells.found, key)
                    yield f"{key}; {seed}", partial(experiment.cell, way, best, seed)
            one: Any = cells.found["SGD, one replica; 0"]
            step = float(one["step_seconds"])
            times = {"step_seconds": step, "travel_seconds": TRAVEL_STEPS * step}
            for replicas in SIMULATED_REPLICAS:
                for key, way in SIMULATED.items():
                    for rate in way.rates:
                        yield (
                            f"simulated; {key}; {replicas}; {rate:g}",
                            partial(experiment.simulated, way, replicas, rate, 0, times, samples),
                        )

        cells.run(plan())
    found = cells.leave()
    write_result(found, name, None, json_)
    draw_figure_4(found, out)
    told: Any = found["summary"]
    if not json_ and told["rows"]:
        table(f"seconds to {told['accuracy']:.1%} of held-out samples", rows(told["rows"]))


def tuned(cells: Mapping[str, Document], way: str) -> float:
    """Return the rate with the best validation accuracy, or 1 for a way without rates."""
    own: list[Any] = [cell for key, cell in cells.items() if key.startswith(f"tune; {way};")]
    return max(own, key=lambda cell: max(cell["accuracy"]["validation"]))["rate"] if own else 1.0


def summary(cells: dict[str, Document]) -> Document:
    """Return seconds and cores to the best held-out accuracy that all ways reached."""
    runs: dict[str, Any] = {
        key: cell for key, cell in cells.items() if not key.startswith(("tune", "simulated"))
    }
    if not runs:
        return {"accuracy": None, "rows": [], "simulated": []}
    accuracy = min(max(cell["accuracy"]["held-out"]) for cell in runs.values())
    found = []
    for key, cell in runs.items():
        place = next(n for n, one in enumerate(cell["accuracy"]["held-out"]) if one >= accuracy)
        found.append(
            {
                "way": key.rpartition("; ")[0],
                "seed": cell["seed"],
                "rate": cell["rate"],
                "best": max(cell["accuracy"]["held-out"]),
                "best_training": max(cell["accuracy"]["train"]),
                "seconds": cell["seconds"][place],
                "cpu_seconds": cell["cpu_seconds"][place],
                "cores": rounded(cell["cpu_seconds"][-1] / cell["seconds"][-1]),
            }
        )
    return {"accuracy": accuracy, "rows": found, "simulated": _simulated(cells, accuracy)}


def _simulated(cells: Mapping[str, Document], accuracy: float) -> Sequence[Document]:
    """Return the time of each way and number of replicas, at the rate with the best validation accuracy."""
    found: list[Document] = []
    for way in SIMULATED:
        for replicas in SIMULATED_REPLICAS:
            own: list[Any] = [
                cell for key, cell in cells.items() if key.startswith(f"simulated; {way}; {replicas};")
            ]
            if not own:
                continue
            best = max(own, key=lambda cell: max(cell["accuracy"]["validation"]))
            reached = [
                at
                for at, one in zip(best["seconds"], best["accuracy"]["held-out"], strict=True)
                if one >= accuracy
            ]
            seconds = reached[0] if reached else None
            found.append({"way": way, "replicas": replicas, "rate": best["rate"], "seconds": seconds})
    return found


if __name__ == "__main__":
    main(downpour_vs_sandblaster)
