"""`cotswold report`.

Knows: the words of the command. Does not know: what is on the page.
"""

from __future__ import annotations

from pathlib import Path


def report(run: Path, *, stores: Path | None = None, threads: int | None = None) -> None:
    """Write a run's report, one HTML page without outside resources, and print where it is.

    Works while training goes on.

    Examples:

      cotswold report runs/demo
      cotswold report demo/run

    Parameters
    ----------
    run
        The run's directory.
    stores
        Where prepared pictures are kept, if not where they were when the run began; filters are shown with
        their whitening taken back.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    """
    from cotswold import analysis, training
    from cotswold.cli.progress import say, stages
    from cotswold.cli.threads import use_threads
    from cotswold.errors import CotswoldError, RunError
    from cotswold.recipe import load
    from cotswold.run import RunDirectory

    directory = RunDirectory.open(run)
    recipe = load(directory.recipe)
    use_threads(threads, recipe)
    with stages() as told:
        told("drawing", 0)
        network, store = None, None
        if recipe.training.strategy != "supervised":
            try:
                network, _ = training.load_stacks(directory)
            except RunError as error:  # nothing learnt yet; the page says so
                say(str(error))
            try:
                store = training.store_of(directory, recipe, stores)
            except CotswoldError as error:
                say(f"filters are shown as they are, whitened: {error}")
        try:
            evaluation = analysis.Evaluation.read(directory.evaluation)
        except RunError as error:
            say(f"the page is without the evaluation: {error}")
            evaluation = analysis.Evaluation(step=0)
        path = analysis.build_report(directory, network, store, evaluation, name=str(run))
    print(path)
