"""Accuracy of the networks of sections 4.3 and 4.4 of Chilimbi et al. 2014, with one replica and with
several.

Knows: the command's options, the order of the cells, where results go. Does not know: how a cell is trained,
compared or plotted.
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
    """Measure accuracy on test samples with one replica (ordinary SGD) and with several asynchronous
    replicas.

    Replicas are simulated event by event. Each computes real gradients at the parameters that it pulled last,
    so staleness equals that of the same number of machines (as in benchmarks/staleness.py). Every choice is
    made on validation samples: one replica uses the rule and rate of the recipe, which were chosen that way.
    For every other number of replicas, five pairs of rule and rate are tried in short runs, with a seed that
    is not used again. Every case has its first seed before any case has its second. The test samples are
    evaluated once, with the last parameters of a run. A recipe with data servers (the augmented cases) is an
    ordinary run that they feed. A cell is one run and is kept when it is finished; the same command resumes.

    Examples:

      python benchmarks/adam_accuracy.py --hours 8
      python benchmarks/adam_accuracy.py --case mnist --replicas 1 --replicas 16 --seeds 3
      python benchmarks/adam_accuracy.py my-recipe.toml --replicas 1 --replicas 4 --out measured

    Parameters
    ----------
    recipe
        Recipe of strategy supervised, instead of the cases.
    case
        Case to run; may be given again [all].
    replicas
        Number of replicas; may be given again [the numbers of each case].
    seeds
        Runs for each number of replicas.
    epochs
        Passes over the training samples, summed over replicas [those of the recipe].
    tuning_epochs
        Passes of a tuning run.
    hours
        Hours after which no cell may end; a cell that would take longer does not start.
    set
        Override a field of every recipe, such as data.source=fashion; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for adam-accuracy.json (the finished cells), adam-accuracy.html (a page with curves) and
        adam-accuracy.svg.
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
        table("several replicas compared with one, points", rows(told["compared"]))
    write_message(f"the page is {out / NAME}.html")


def _cases(recipe: str | None, names: Sequence[str] | None, replicas: Sequence[int] | None) -> list[Case]:
    """Return the requested cases, in the order of `CASES`; raise UserError for an unknown one."""
    if recipe is not None:
        if names:
            raise UserError("a recipe replaces the cases; leave out --case or the recipe")
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
    """Run the cells that are not finished and return the result."""
    asked = {each.name for each in cases}
    known = [*cases, *(each for each in CASES if each.name not in asked)]  # the file may hold any case
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
