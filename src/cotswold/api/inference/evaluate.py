"""Evaluation of a run: accuracy and errors of a supervised run, or selectivity of neurons.

Knows: the sources and functions of each test. Does not know: the measurement of selectivity, display.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.inference.labelled import evaluate_source, evaluate_split
from cotswold.api.run import Run
from cotswold.api.threads import compute_threads
from cotswold.errors import UserError
from cotswold.recipe.schema import Evaluation as Test
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.analysis import Classification, Evaluation, Regression
    from cotswold.analysis.selectivity.scores import ClassWeights
    from cotswold.data.sources.file_names import Labels
    from cotswold.training.metrics.registry import MetricSource


def evaluate(
    run: Run | str | Path,
    *,
    source: object | None = None,
    split: str | None = None,
    labels: Labels | None = None,
    metrics: Sequence[MetricSource] | None = None,
    stores: str | Path | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Classification | Regression:
    """Evaluate a supervised run on labelled samples: accuracy and confusion, or regression errors.

    The samples are the run's test samples, or its validation samples if it has no test samples; training
    samples only if ``split`` names them. Without ``source`` and ``split``, the run's directory keeps the
    result for the report. The neurons of a run without labels are tested by `selectivity`.

    Args:
        run: The run, or its directory.
        source: Labelled samples from outside the run's store: a path, or for a run on a table also a frame
            or array.
        split: ``"train"``, ``"validation"`` or ``"test"`` of the run's store.
        labels: Labels of ``source``, ``"folders"`` or ``"file"``. [as in the run's recipe]
        metrics: Further metrics: names, objects with update, compute and reset, or functions of (output,
            target). [those of the run's recipe]
        stores: Folder of prepared stores. [default folder]
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Returns:
        An `analysis.Classification`, or an `analysis.Regression` if the run learnt regression targets. Both
        have ``metrics``, by name.

    Raises:
        RunError: if the run cannot be used.
        SourceError: if a source cannot be read.
        StoreError: if the run's store is missing or damaged.
        UserError: if an argument is invalid for this run, or a metric cannot be measured.
    """
    known, display = Run(run, stores=stores), display_for(progress)
    known.require_recipe_run("an evaluation")
    recipe = known.recipe
    if recipe.network.stacks:
        raise UserError(
            f"{_run_path(run)} was trained without labels and has no accuracy; test its neurons with "
            "positives and negatives (Python: cotswold.selectivity)"
        )
    if source is None and labels is not None:
        raise UserError("labels applies to a source; give the source too")
    if source is not None and split is not None:
        raise UserError("source and split exclude each other; give one of them")
    if isinstance(metrics, str):
        raise UserError(f"metrics must be a list, got a text; give metrics=[{metrics!r:.80}]")
    with compute_threads(threads, recipe):
        if source is None:
            return evaluate_split(known, split, metrics, display)
        return evaluate_source(known, source, labels, metrics, display)


def selectivity(
    run: Run | str | Path,
    *,
    positives: str | Path | None = None,
    negatives: str | Path | None = None,
    name: str = "object",
    layers: Sequence[str] = (),
    control: Run | str | Path | None = None,
    splits: int = 5,
    weights: str | float = "paper",
    few_labels: Sequence[int] = (),
    draws: int | None = None,
    stores: str | Path | None = None,
    threads: int | None = None,
    repeat: bool = False,
    progress: bool | None = None,
) -> Evaluation:
    """Test how well the neurons of a run of stacks distinguish images with an object from others.

    The selectivity is compared with random filters and k-means. Without sources, the tests in the run's
    recipe are used. Each result is written to the run's directory at once and reused unless ``repeat``.

    Args:
        run: The run, or its directory.
        positives: Images with the object.
        negatives: Images without it.
        name: Name of the object in the results.
        layers: Layers whose neurons are tested, such as ``["2.pooled"]``. [output of every stack]
        control: Another run, tested for comparison.
        splits: Random halves for the held-out accuracy, 1 to 35.
        weights: Weight of positives in an accuracy: ``"paper"`` (0.353), ``"equal"``, ``"counts"`` (equal
            weight for every image), or a number between 0 and 1.
        few_labels: Numbers of labelled images of each class, such as ``[1, 2, 5]``. A classifier learns from
            them, on responses of the network, on those of its baselines, and on pixels. [those of the
            recipe's tests]
        draws: Random draws of the labelled images, at least 2. [50]
        stores: Folder of prepared stores. [default folder]
        threads: Number of threads. [as in the recipe, else all cores]
        repeat: Repeat tests that have results.
        progress: Show progress. [if on a terminal or in a notebook]

    Returns:
        The selectivity of every tested layer.

    Raises:
        RunError: if the run cannot be used.
        SourceError: if a source cannot be read.
        StoreError: if the run's store is missing or damaged.
        UserError: if an argument is invalid for this run.
    """
    if splits < 1:
        raise UserError(f"splits must be at least 1, got {splits}")
    weighed = class_weights(weights)
    known, display = Run(run, stores=stores), display_for(progress)
    known.require_recipe_run("an evaluation")
    recipe = known.recipe
    if not recipe.network.stacks:
        given: dict[str, object] = {"positives": positives, "negatives": negatives, "layers": layers}
        given |= {"control": control, "few_labels": few_labels, "draws": draws}
        useless = " and ".join(name for name, value in given.items() if value)
        raise UserError(
            f"{_run_path(run)} is a supervised run, which is tested on labelled samples; "
            f"{f'omit {useless}, or ' if useless else ''}use cotswold.evaluate(run)"
        )
    with compute_threads(threads, recipe):
        if (positives is None) != (negatives is None):
            raise UserError("selectivity needs both positives and negatives; give both")
        tests = recipe.evaluate
        if positives is not None and negatives is not None:
            tests = [Test(name=name, positives=str(positives), negatives=str(negatives))]
        if not tests:
            raise UserError(f"the recipe of {_run_path(run)} names no tests; give positives and negatives")
        if draws is not None and not (few_labels or any(test.few_labels for test in tests)):
            raise UserError("draws applies to few labels; give few_labels too, such as 1,2,5")
        from cotswold.api.inference import baselines

        compared = None if control is None else Path(_run_path(control))
        wishes = baselines.EvaluationOptions(
            layers, compared, splits, weighed, known.stores, repeat, display, few_labels, draws
        )
        return baselines.score_objects(known.directory, tests, wishes)


def class_weights(words: str | float) -> ClassWeights | None:
    """Return the weights that ``weights`` denotes; None for equal weight of images. Raises UserError.

    >>> class_weights("0.25")
    ClassWeights(positives=0.25, negatives=0.75)
    """
    from cotswold.analysis.selectivity.scores import PAPER, ClassWeights

    named = {"paper": PAPER, "equal": ClassWeights(0.5, 0.5), "counts": None}
    if isinstance(words, str) and words in named:
        return named[words]
    try:
        positives = float(words)
        return ClassWeights(positives, 1 - positives)
    except ValueError:
        raise UserError(
            f"weights must be paper, equal, counts or a number between 0 and 1, got {str(words)[:40]}"
        ) from None


def _run_path(run: Run | str | Path) -> str:
    """Return the run's directory as the caller wrote it."""
    return str(run.path if isinstance(run, Run) else run)
