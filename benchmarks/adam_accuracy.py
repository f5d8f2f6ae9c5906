"""Accuracy of Chilimbi et al. 2014: the networks of sections 4.3 and 4.4, on one replica and on several.

Knows: the words of the command, which cell comes when, where results go. Does not know: how a cell is
trained, compared or shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.errors import UserError
from cotswold.files import replace_file
from cotswold.ui.terminal import write_message
from lib.accuracy.cases import CASES, SYNCHRONOUS, TUNING_SEED, Case, Trained
from lib.accuracy.page import drawing, page
from lib.accuracy.summary import check_same, final_key, summary, tuned, tuning_key
from lib.cells import Cells, Plan
from lib.command import Json, Overrides, main, rows
from lib.mnist import recipe_here

NAME = "adam-accuracy"


def adam_accuracy(
    recipe: str | None = None,
    *,
    case: Annotated[list[str] | None, Parameter(negative=())] = None,
    replicas: Annotated[list[int] | None, Parameter(negative=())] = None,
    seeds: int = 5,
    epochs: int | None = None,
    tuning_epochs: int = 6,
    hours: float = 1.0,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Accuracy on test samples, of one replica (ordinary SGD) and of several that do not wait.

    Replicas are simulated event by event, with real gradients at the parameters that each had pulled, so that
    staleness is that of so many machines (as benchmarks/staleness.py does). Every choice is made on
    validation samples: one replica has the rule and rate of the recipe, which were chosen so when it was
    written; for every other number five pairs of rule and rate are tried, in short runs of a seed that is not
    used again. Every case has its first seed before any has its second. Test samples are judged once, with
    the last parameters of a run. A recipe with data servers, as those of the augmented cases have, is an
    ordinary run that they feed. A cell is one run, and is kept when it is finished; the same command goes on,
    whenever that is.

    Examples:

      python benchmarks/adam_accuracy.py --hours 8
      python benchmarks/adam_accuracy.py --case mnist --replicas 1 --replicas 16 --seeds 3
      python benchmarks/adam_accuracy.py my-recipe.toml --replicas 1 --replicas 4 --out measured

    Parameters
    ----------
    recipe
        A recipe of strategy supervised in the place of the cases.
    case
        Which; all by default. May be given again.
    replicas
        How many; by default what each case names. May be given again.
    seeds
        Runs of each number of replicas.
    epochs
        Passes over the training samples, of all replicas together; those of the recipe by default.
    tuning_epochs
        How long a run is that tunes.
    hours
        No cell begins that would end later.
    set
        Overrides a field of every recipe, such as data.source=fashion; may be given again.
    stores
        Where samples are prepared.
    out
        A directory for adam-accuracy.json, which has the finished cells, adam-accuracy.html, a page with
        curves, and adam-accuracy.svg.
    json_
        Print JSON.
    """
    require_positive(min(seeds, tuning_epochs, epochs or 1), "--seeds, --epochs and --tuning-epochs")
    cases = _cases(recipe, case, replicas)
    with TemporaryDirectory() as folder:
        trained = {
            each.name: Trained(
                each,
                recipe_here(each.recipe, stores, set or []),
                stores,
                Path(folder),
                epochs,
            )
            for each in cases
        }
        found = _run(cases, trained, seeds, tuning_epochs, hours, out)
    write_result(found, NAME, None, json_)
    told: Any = found["summary"]
    if not json_ and told["rows"]:
        table("test samples", rows(told["rows"]))
    if not json_ and told["compared"]:
        table("several replicas beside one, points", rows(told["compared"]))
    write_message(f"the page is {out / NAME}.html")


def _cases(recipe: str | None, names: Sequence[str] | None, replicas: Sequence[int] | None) -> list[Case]:
    """What is asked for, in the order of `CASES`; raises UserError for what there is not."""
    if recipe is not None:
        if names:
            raise UserError("a recipe stands in the place of the cases; leave out --case, or the recipe")
        cases = [Case(Path(recipe).stem, recipe, (1, 4, 16))]
    else:
        unknown = sorted({*(names or ())} - {each.name for each in CASES})
        if unknown:
            raise UserError(f"--case {unknown[0]} is none of {', '.join(each.name for each in CASES)}")
        cases = [each for each in CASES if not names or each.name in names]
    if not replicas:
        return cases
    numbers = tuple(dict.fromkeys(require_positive(each, "--replicas") for each in replicas))
    return [replace(each, replicas=numbers) for each in cases]


def _run(
    cases: Sequence[Case],
    trained: dict[str, Trained],
    seeds: int,
    tuning_epochs: int,
    hours: float,
    out: Path,
) -> Document:
    """Measure what is not there yet; the result."""
    asked = {each.name for each in cases}
    known = [*cases, *(each for each in CASES if each.name not in asked)]  # whose cells the file may have
    cells = Cells(NAME, out, 60 * hours, partial(summary, cases=known), tuning_epochs=tuning_epochs)
    for each in cases:
        check_same(cells.found, trained[each.name], out / f"{NAME}.json")

    def shown() -> Document:
        found = cells.leave()
        replace_file(out / f"{NAME}.html", page(found, known).encode())
        replace_file(out / f"{NAME}.svg", drawing(found, known).encode())
        return found

    most = max(len(each.replicas) for each in cases)

    def plan() -> Plan:
        numbers = [(each, place) for place in range(most) for each in cases if place < len(each.replicas)]
        for seed, (each, place) in product(range(seeds), numbers):
            own, number = trained[each.name], each.replicas[place]
            best = own.own
            if number != SYNCHRONOUS:
                for candidate in own.candidates(number):
                    tune = partial(own.cell, number, candidate, TUNING_SEED, tuning_epochs, False)
                    yield tuning_key(each.name, number, candidate), tune
                best = tuned(cells.found, each.name, number, own.candidates(number))
            yield final_key(each.name, number, seed), partial(own.cell, number, best, seed, own.epochs, True)
            shown()

    cells.run(plan())
    return shown()


if __name__ == "__main__":
    main(adam_accuracy)
