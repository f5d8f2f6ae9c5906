"""The image network of Dean et al. 2012, section 5, with random filters and with learnt filters.

Knows: the command's options, the order of the cells, the comparison. Does not know: how a run is trained or
evaluated, pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold import recipe as recipes
from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.training import open_store
from lib.cells import Cells, Plan
from lib.command import Json, Overrides, main, rows
from lib.distbelief.images import ARMS, Images, draw_images, report

RATES = (0.0025, 0.01, 0.05, 0.1)
TUNING_SEED = 1_000


def distbelief_images(
    recipe: str = "distbelief-images",
    *,
    filters: str = "distbelief-filters",
    rate: Annotated[list[float] | None, Parameter(negative=())] = None,
    epochs: float = 12.0,
    filter_epochs: float = 6.0,
    seeds: int = 3,
    minutes: float = 60.0,
    set: Overrides = None,
    runs: Path = Path("runs/distbelief-images"),
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure accuracy on held-out images of Caltech-101's categories, with random and with learnt filters.

    Four ways: filters at random, or learnt without labels from the training images; all layers tuned with
    labels, or the filters fixed and only the logistic outputs learnt. For each way the rate is chosen on
    validation images, one run for each rate, with a seed that is not used again. Then the seeds follow, ways
    alternating; each seed has its own filters. The parameters after the last epoch are evaluated once on
    held-out images. A cell is one run; each is kept when it is finished, and the same command resumes. One
    run takes about two minutes on one core. Examples:

      python benchmarks/distbelief_images.py --minutes 60
      python benchmarks/distbelief_images.py --seeds 5 --minutes 120

    Parameters
    ----------
    recipe
        Supervised recipe built on stacks.
    filters
        Greedy recipe for these stacks.
    rate
        Learning rate to choose from; may be given again [0.0025, 0.01, 0.05 and 0.1].
    epochs
        Epochs of a run with labels.
    filter_epochs
        Epochs of each stage without labels.
    seeds
        Runs of each way at its best rate.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of the recipe, such as training.batch_size=96; may be given again.
    runs
        Directory of the runs of filters (kept) and of runs with labels (deleted at their end).
    stores
        Directory of prepared samples.
    out
        Directory for distbelief-images.json (the finished cells), its page and its plot.
    json_
        Print JSON.
    """
    rates = rate or list(RATES)
    require_positive(seeds, "--seeds")
    read = recipes.load(recipe, set or [])
    settings = {"rates": rates, "epochs": epochs, "filter_epochs": filter_epochs, "set": set or []}
    cells = Cells("distbelief-images", out, minutes, summary, recipe=read.name, filters=filters, **settings)
    images = Images(read, filters, epochs, filter_epochs, runs, stores)
    open_store(read, stores)

    def learnt(seed: int) -> Plan:
        yield f"filters; {seed}", partial(images.filters, seed)

    def plan() -> Plan:
        yield from learnt(TUNING_SEED)
        for each in rates:
            for name, arm in ARMS.items():
                yield f"tune; {name}; {each:g}", partial(images.cell, arm, each, TUNING_SEED)
        for seed in range(seeds):
            yield from learnt(seed)
            for name, arm in ARMS.items():
                words = (arm, tuned(cells.found, name), seed)
                yield f"{name}; {seed}", partial(images.cell, *words, is_judged=True)

    cells.run(plan())
    found = cells.leave()
    write_result(found, "distbelief-images", None, json_)
    told: Any = found["summary"]
    draw_images(found, out)
    report(found, out)
    if not json_ and told["rows"]:
        table(f"{read.name}: held-out images", rows(told["rows"]))


def tuned(cells: Mapping[str, Document], name: str) -> float:
    """Return the rate with the best validation accuracy; of equal ones, the smaller."""
    own: list[Any] = [cell for key, cell in cells.items() if key.startswith(f"tune; {name};")]
    return float(max(own, key=lambda cell: (cell["validation"], -cell["rate"]))["rate"])


def summary(cells: dict[str, Document]) -> Document:
    """Return each way at its best rate, and the gain of learnt filters seed by seed."""
    own: dict[str, list[Any]] = {
        name: [cell for key, cell in cells.items() if key.startswith(f"{name};")] for name in ARMS
    }
    found: list[Document] = [
        {
            "way": name,
            "rate": runs[0]["rate"],
            "test": rounded(mean(run["test"] for run in runs)),
            "spread": rounded(stdev(run["test"] for run in runs)) if len(runs) > 1 else None,
            "least": min(run["test"] for run in runs),
            "greatest": max(run["test"] for run in runs),
            "mean_over_classes": rounded(mean(run["mean_over_classes"] for run in runs)),
            "validation": rounded(mean(run["validation"] for run in runs)),
            "seeds": len(runs),
        }
        for name, runs in own.items()
        if runs
    ]
    return {"rows": found, "gains": [_gain(own, arm) for arm in (True, False) if _paired(own, arm)]}


def _names(tuned: bool) -> tuple[str, str]:
    ways: list[str] = [name for name, arm in ARMS.items() if arm.tuned == tuned]
    learnt: list[str] = [name for name in ways if ARMS[name].learnt]
    return learnt[0], next(name for name in ways if name not in learnt)


def _paired(own: Mapping[str, list[Any]], tuned: bool) -> list[float]:
    learnt, random = (own[name] for name in _names(tuned))
    return [100 * (one["test"] - other["test"]) for one, other in zip(learnt, random, strict=False)]


def _gain(own: Mapping[str, list[Any]], tuned: bool) -> Document:
    points = _paired(own, tuned)
    return {
        "of": _names(tuned)[0],
        "over": _names(tuned)[1],
        "points": rounded(mean(points)),
        "each": [rounded(one) for one in points],
    }


if __name__ == "__main__":
    main(distbelief_images)
