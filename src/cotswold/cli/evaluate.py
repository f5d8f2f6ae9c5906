"""`cotswold evaluate`.

Knows: the words of the command, which sources are tested. Does not know: how selectivity is measured, how
results are shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.analysis.selectivity import ClassWeights
    from cotswold.run import RunDirectory


def evaluate(
    run: Path,
    *,
    positives: str | None = None,
    negatives: str | None = None,
    name: str = "object",
    layers: Annotated[list[str] | None, Parameter(negative=())] = None,
    control: Path | None = None,
    splits: int = 5,
    weights: str = "paper",
    stores: Path | None = None,
    threads: int | None = None,
    anew: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure how selective a run's neurons are, beside random filters and k-means; for a supervised run,
    accuracy and confusion.

    Every test is kept in the run's directory as soon as it is finished, where
    `cotswold report` finds it; the same command goes on with those that are missing.

    Examples:

      cotswold evaluate runs/demo                 the tests that its recipe names
      cotswold evaluate runs/mine --positives faces.zip --negatives other.zip
      cotswold evaluate runs/mine --positives a/ --negatives b/ --weights counts
      cotswold evaluate runs/mine --layers 1.output --layers 3.pooled --json

    Parameters
    ----------
    run
        The run's directory.
    positives
        A source of pictures that show the object.
    negatives
        A source of pictures that do not.
    name
        What the object is called in the table.
    layers
        Layers whose neurons are tested, such as 2.pooled (filters, pooled or output); the output of every
        stack
        by default. May be given again.
    control
        Another run (trained on other pictures, say) whose neurons are tested beside.
    splits
        Random splits into halves for the held-out accuracy, 1 to 35.
    weights
        What positives and negatives weigh in an accuracy: `paper` (0.353 to 0.647, whatever their numbers, so
        that guessing gives 0.647 as in the paper), `equal`, `counts` (every picture the same, so that
        guessing gives the part of the larger class), or the weight of the positives, between 0 and 1.
    stores
        Where prepared pictures are kept, if not where they were when the run began.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    anew
        Test again what was tested before in the same way.
    json_
        Print the whole result as JSON.
    """
    from cotswold.cli import contest
    from cotswold.cli.threads import use_threads
    from cotswold.errors import UserError
    from cotswold.recipe import load
    from cotswold.recipe.schema import Evaluation as Test
    from cotswold.run import RunDirectory

    if splits < 1:
        raise UserError(f"--splits {splits} halves nothing; give 1 or more")
    weighed = class_weights(weights)
    directory = RunDirectory.open(run)
    recipe = load(directory.recipe)
    use_threads(threads, recipe)
    if recipe.training.strategy == "supervised":
        if positives is not None or negatives is not None:
            raise UserError(
                f"{run} is a supervised run, which is tested on its own labelled pictures; leave out "
                "--positives and --negatives"
            )
        _classify(directory, stores, json_)
        return
    if (positives is None) != (negatives is None):
        raise UserError("selectivity needs both --positives and --negatives; give the other one too")
    if positives is not None and negatives is not None:
        tests = [Test(name=name, positives=positives, negatives=negatives)]
    else:
        tests = recipe.evaluate
    if not tests:
        raise UserError(f"the recipe of {run} names no tests; give --positives and --negatives")
    wishes = contest.Wishes(tuple(layers or ()), control, splits, weighed, stores, anew)
    evaluation = contest.hold(directory, tests, wishes)
    if json_:
        print(evaluation.to_json())
    else:
        from cotswold.cli.findings import print_selectivity

        print_selectivity(evaluation)


def class_weights(words: str) -> ClassWeights | None:
    """What ``--weights`` means, None for every picture alike; raises UserError for anything else.

    >>> class_weights("0.25")
    ClassWeights(positives=0.25, negatives=0.75)
    """
    from cotswold.analysis.selectivity import PAPER, ClassWeights
    from cotswold.errors import UserError

    named = {"paper": PAPER, "equal": ClassWeights(0.5, 0.5), "counts": None}
    if words in named:
        return named[words]
    try:
        positives = float(words)
        return ClassWeights(positives, 1 - positives)
    except ValueError:
        raise UserError(
            f"--weights {words[:40]} is neither paper, equal, counts nor a number between 0 and 1; give one "
            "of these"
        ) from None


def _classify(directory: RunDirectory, stores: Path | None, json_: bool) -> None:
    from cotswold import analysis, training
    from cotswold.cli.findings import print_confusion
    from cotswold.cli.progress import counting
    from cotswold.errors import SourceError, StoreError
    from cotswold.recipe import load

    recipe = load(directory.recipe)
    trained = training.trained_layers(directory, stores)
    try:
        with counting("preparing", "pictures") as tally:
            store = training.store_of(directory, recipe, stores, tally)
    except SourceError as error:
        raise SourceError(
            f"a supervised run is tested on its own labelled pictures, which are not here ({error}); copy "
            "them or their store (--stores), or name the classes of others by cotswold predict"
        ) from error
    if store.identity != trained.prepared.store:
        raise StoreError(
            f"the store {store.path} is not the one that {directory.path} learnt from; give the run's own "
            "(--stores)"
        )
    split = next(each for each in ("test", "validation", "train") if store.splits.get(each))
    batches = training.labelled_batches(store, recipe, split)
    found = analysis.classify(trained.network, batches, store.classes, step=trained.step, split=split)
    found.write(directory.classification)
    if json_:
        print(found.to_json())
    else:
        print_confusion(found)
