"""The image network of Dean et al. 2012, section 5, from random filters and from learnt ones.

Knows: the words of the command, which cell comes when, what is compared. Does not know: how a run is trained
or judged, pages.
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
    """Held-out accuracy on Caltech-101's categories from random filters and from learnt ones.

    Four ways: filters at random, or learnt without labels from the training images; all layers tuned with
    labels, or the filters kept as they are and the logistic outputs learnt alone. For each the rate is chosen
    on validation images, one run a rate, with a seed that is not used again. Then the seeds, in turns, each
    with filters of its own; the parameters after the last epoch are judged once on held-out images. A cell
    is one run; each is kept when it is finished; the same command goes on. One run takes some two minutes on
    one core. Examples:

      python benchmarks/distbelief_images.py --minutes 60
      python benchmarks/distbelief_images.py --seeds 5 --minutes 120

    Parameters
    ----------
    recipe
        A supervised recipe that stands on stacks.
    filters
        A greedy recipe for these stacks.
    rate
        Learning rates to choose from; 0.0025, 0.01, 0.05 and 0.1 by default. May be given again.
    epochs
        How long a run with labels is.
    filter_epochs
        How long each stage learns without labels.
    seeds
        Runs of each way at its best rate.
    minutes
        No cell begins that would end later.
    set
        Overrides a field of the recipe, such as training.batch_size=96; may be given again.
    runs
        Where runs of filters are kept; those with labels are there while they last.
    stores
        Where samples are prepared.
    out
        A directory for distbelief-images.json, which has the finished cells, and the page and image of it.
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
    """The rate with the best validation accuracy; the smaller of two that are as good."""
    own: list[Any] = [cell for key, cell in cells.items() if key.startswith(f"tune; {name};")]
    return float(max(own, key=lambda cell: (cell["validation"], -cell["rate"]))["rate"])


def summary(cells: dict[str, Document]) -> Document:
    """Each way at its best rate, and by how much learnt filters are better, seed by seed."""
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
