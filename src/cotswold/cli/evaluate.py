"""`cotswold evaluate`.

Knows: the words of the command, which sources are tested. Does not know: how selectivity is measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.analysis import Evaluation
    from cotswold.analysis.selectivity import LayerSelectivity
    from cotswold.cli.progress import Stages
    from cotswold.recipe.schema import Evaluation as Test
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
    stores: Path | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure how selective a run's neurons are, beside random filters and k-means; for a supervised run,
    accuracy.

    Whatever the numbers of pictures, the two classes are weighted to the paper's
    proportion, so that guessing gives an accuracy of 0.647. The result is kept in
    the run's directory, where `cotswold report` finds it.

    Examples:

      cotswold evaluate runs/demo                 the tests that its recipe names
      cotswold evaluate runs/mine --positives faces.zip --negatives other.zip
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
    stores
        Where prepared pictures are kept, if not where they were when the run began.
    json_
        Print the whole evaluation as JSON.
    """
    from cotswold.errors import UserError
    from cotswold.recipe import load
    from cotswold.recipe.schema import Evaluation as Test
    from cotswold.run import RunDirectory

    if splits < 1:
        raise UserError(f"--splits {splits} halves nothing; give 1 or more")
    directory = RunDirectory.open(run)
    recipe = load(directory.recipe)
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
    evaluation = _examine(directory, tests, layers, control, splits, stores)
    if json_:
        print(evaluation.to_json())
    else:
        _print_table(evaluation)


def _examine(
    directory: RunDirectory,
    tests: list[Test],
    layers: list[str] | None,
    control: Path | None,
    splits: int,
    stores: Path | None,
) -> Evaluation:
    from cotswold import analysis, training
    from cotswold.cli.progress import say, stages
    from cotswold.data import open_source
    from cotswold.recipe import expand, load
    from cotswold.run import RunDirectory

    recipe = load(directory.recipe)
    store = training.store_of(directory, recipe, stores)
    network, step = training.load_stacks(directory)
    beside = None if control is None else training.load_stacks(RunDirectory.open(control))[0]
    chosen = [analysis.Layer.named(layer) for layer in layers or []] or analysis.top_layers(network, "output")
    evaluation = _earlier(directory, step)
    with stages() as told:
        told("k-means dictionary", 0)
        passes = math.ceil(
            recipe.network.stacks[-1].epochs or recipe.training.epochs
        )  # as the stack itself had
        pictures = itertools.chain.from_iterable(training.training_maps(store, recipe) for _ in range(passes))
        dictionary = analysis.kmeans_network(network, pictures)
        contestants = analysis.Contestants(network, training.random_stacks(recipe, store), dictionary, beside)
        for test in tests:
            trial = analysis.Trial(
                open_source(expand(test.positives)),
                open_source(expand(test.negatives)),
                store.transform,
                batch=recipe.training.batch,
                device=recipe.training.device,
            )
            found = analysis.examine(
                test.name,
                contestants,
                trial,
                analysis.Examination(chosen, splits=splits),
                unlabelled=lambda: training.training_maps(store, recipe, most=5000),
                transform=store.transform,
                look=trial.look,
                progress=partial(_tell, told, test.name),
            )
            for reason in trial.broken:
                say(f"left out: {reason}")
            evaluation = evaluation.with_object(found)
            text = evaluation.to_json()
    analysis.Evaluation.from_json(text)  # a figure that is no number is never kept
    directory.evaluation.write_text(text, encoding="utf-8")
    return evaluation


def _earlier(directory: RunDirectory, step: int) -> Evaluation:
    """What was found for this step before, to which new objects are added."""
    from cotswold.analysis import Evaluation
    from cotswold.cli.progress import say
    from cotswold.errors import RunError

    try:
        found = Evaluation.read(directory.evaluation)
    except RunError as error:
        say(f"the earlier evaluation cannot be read and is replaced: {error}")
        found = None
    return found if found is not None and found.step == step else Evaluation(step)


def _tell(told: Stages, name: str, doing: str, done: int) -> None:
    told(f"{name}, {doing}", done)


def _print_table(evaluation: Evaluation) -> None:
    """The shape of the paper's Table 2, with the accuracies on held-out halves."""
    from rich.console import Console
    from rich.table import Table

    guess = max((row.guess for row in evaluation.objects), default=0.0)
    table = Table(
        title="best neuron: accuracy on all pictures / on held-out halves",
        title_justify="left",
        caption=f"classes are weighted to the paper's proportion: guessing gives {guess:.3f}",
        caption_justify="left",
    )
    for heading in ("object", "layer", "guess", "random filters", "k-means", "control", "this network", "±"):
        table.add_column(heading, justify="left" if heading in ("object", "layer") else "right")
    for row in evaluation.objects:
        for layer in row.network:
            rivals = [
                _both(_same(layers, layer.layer)) for layers in (row.random, row.dictionary, row.control)
            ]
            figures = [f"{row.guess:.3f}", *rivals, _both(layer), f"{layer.spread:.3f}"]
            table.add_row(row.name, layer.layer, *figures)
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)


def _same(layers: Sequence[LayerSelectivity], name: str) -> LayerSelectivity | None:
    return next((layer for layer in layers if layer.layer == name), None)


def _both(layer: LayerSelectivity | None) -> str:
    return "" if layer is None else f"{layer.best[0].accuracy:.3f} / {layer.held_out:.3f}"


def _classify(directory: RunDirectory, stores: Path | None, json_: bool) -> None:
    from cotswold import analysis, training
    from cotswold.recipe import load

    recipe = load(directory.recipe)
    store = training.store_of(directory, recipe, stores)
    network, step = training.load_layers(directory, len(store.classes))
    split = next(each for each in ("test", "validation", "train") if store.splits.get(each))
    found = analysis.classify(
        network, training.labelled_batches(store, recipe, split), store.classes, step=step, split=split
    )
    directory.classification.write_text(found.to_json(), encoding="utf-8")
    print(found.to_json() if json_ else f"{split}: {found.accuracy:.2%} of {found.pictures} pictures")
