"""`cotswold report`.

Knows: the words of the command. Does not know: what is on the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotswold.data import Transform
    from cotswold.nn import StackNetwork
    from cotswold.run import RunDirectory


def report(run: Path, *, stores: Path | None = None, threads: int | None = None) -> None:
    """Write a run's report, one HTML page without outside resources, and print where it is.

    Works while training goes on. What is damaged is left out, and named on the page.

    Examples:

      cotswold report runs/demo
      cotswold report demo/run

    Parameters
    ----------
    run
        The run's directory.
    stores
        Where prepared pictures are kept; only runs of before checkpoints knew their preparation need it.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    """
    from cotswold import analysis, training
    from cotswold.cli.progress import say, stages
    from cotswold.cli.threads import use_threads
    from cotswold.recipe import load
    from cotswold.run import RunDirectory

    directory = RunDirectory.open(run)
    recipe = load(directory.recipe)
    use_threads(threads, recipe)
    with stages() as told:
        told("drawing", 0)
        found = _Found()
        if recipe.training.strategy != "supervised":
            _look(found, directory, stores)
        store = training.kept_store(directory)
        path = analysis.build_report(
            directory,
            found.network,
            found.transform,
            left_out=None if store is None else analysis.LeftOut(*store.broken, store.remarks),
            problems=found.problems,
            name=str(run),
        )
    for problem in found.problems:
        say(problem)
    print(path)


@dataclass
class _Found:
    """What could be read of a run's newest checkpoint, and what was wrong with the rest."""

    network: StackNetwork | None = None
    transform: Transform | None = None
    problems: list[str] = field(default_factory=list)


def _look(found: _Found, directory: RunDirectory, stores: Path | None) -> None:
    from cotswold import training
    from cotswold.data import Transform
    from cotswold.errors import CotswoldError

    try:
        trained = training.trained_stacks(directory, stores)
    except CotswoldError as error:  # nothing learnt yet, damaged, or too large for this machine
        found.problems.append(f"the page is without filters: {error}")
        return
    found.network = trained.network
    try:
        transform = trained.prepared.transform
        found.transform = transform if isinstance(transform, Transform) else None  # only pictures are shown
    except CotswoldError as error:  # a run of before checkpoints knew how pictures were prepared
        found.problems.append(f"filters are shown as they are, whitened: {error}")
