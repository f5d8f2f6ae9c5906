"""How selective a run's neurons are; accuracy and confusion, or errors, of a supervised run.

Knows: which sources are tested, by whom. Does not know: how selectivity is measured, how results are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_path
from cotswold.api.inference.labelled import judge_source, judge_split
from cotswold.api.run import Run
from cotswold.api.threads import computing
from cotswold.errors import UserError
from cotswold.recipe.schema import Evaluation as Test
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.analysis import Classification, Evaluation, Regression
    from cotswold.analysis.selectivity.scores import ClassWeights
    from cotswold.data.sources.base import Labels


def evaluate(
    run: Run | str | Path,
    *,
    source: str | Path | None = None,
    split: str | None = None,
    labels: Labels | None = None,
    positives: str | Path | None = None,
    negatives: str | Path | None = None,
    name: str = "object",
    layers: Sequence[str] = (),
    control: Run | str | Path | None = None,
    splits: int = 5,
    weights: str | float = "paper",
    stores: str | Path | None = None,
    threads: int | None = None,
    anew: bool = False,
    progress: bool | None = None,
) -> Evaluation | Classification | Regression:
    """How well neurons tell pictures with an object (``positives``) from others (``negatives``), beside
    random filters and k-means: an `analysis.Evaluation`. Of a supervised run the accuracy and confusion on
    its own labelled samples: an `analysis.Classification`; or, where it learnt to predict numbers, their
    errors: an `analysis.Regression`.

    A supervised run is judged on its test samples, or on those for validation if it has no test samples.
    ``split`` chooses others of its own: ``"train"``, ``"validation"`` or ``"test"``. ``source`` names
    labelled samples from elsewhere; their labels are where the run's own were, or where ``labels`` says
    (``"folders"``, ``"file"``). The run's directory keeps the result for the report unless one of them is
    given.

    Without sources, the tests that the run's recipe names. Every test is kept in the run's directory as soon
    as it is finished, and is not repeated unless ``anew``. ``layers``: whose neurons are tested, such as
    ``["2.pooled"]``; the output of every stack by default. ``control``: another run, tested beside.
    ``splits``: random halves for the held-out accuracy, 1 to 35. ``weights``: what positives weigh in an
    accuracy: ``"paper"`` (0.353), ``"equal"``, ``"counts"`` (every picture the same), or a number between 0
    and 1. Raises RunError, SourceError, StoreError, UserError.
    """
    if splits < 1:
        raise UserError(f"splits: {splits} halves nothing; give 1 or more")
    weighed = class_weights(weights)
    known, display = Run(run, stores=stores), display_for(progress)
    known.refuse_module("an evaluation")
    recipe = known.recipe
    with computing(threads, recipe):
        if not recipe.network.stacks:
            given = {"positives": positives, "negatives": negatives, "layers": layers, "control": control}
            if useless := [name for name, value in given.items() if value]:
                raise UserError(
                    f"{_named(run)} is a supervised run, which is tested on its own labelled samples; leave "
                    f"out {' and '.join(useless)}"
                )
            if source is None and labels is not None:
                raise UserError("labels says where those of a source are; name the source too")
            if source is not None and split is not None:
                raise UserError("a source has no split of the run's store; give one of source and split")
            if source is None:
                return judge_split(known, split, display)
            check_path("the source", source)
            return judge_source(known, source, labels, display)
        if any(each is not None for each in (source, split, labels)):
            raise UserError(
                f"{_named(run)} has learnt without labels, and has no accuracy on samples; its neurons are "
                "tested on positives and negatives"
            )
        if (positives is None) != (negatives is None):
            raise UserError("selectivity needs both positives and negatives; give the other one too")
        tests = recipe.evaluate
        if positives is not None and negatives is not None:
            tests = [Test(name=name, positives=str(positives), negatives=str(negatives))]
        if not tests:
            raise UserError(f"the recipe of {_named(run)} names no tests; give positives and negatives")
        from cotswold.api.inference import baselines

        rival = None if control is None else Path(_named(control))
        wishes = baselines.Wishes(layers, rival, splits, weighed, known.stores, anew, display)
        return baselines.hold(known.directory, tests, wishes)


def class_weights(words: str | float) -> ClassWeights | None:
    """What ``weights`` means, None for every picture alike; raises UserError for anything else.

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
            f"weights: {str(words)[:40]} is neither paper, equal, counts nor a number between 0 and 1; give "
            "one of these"
        ) from None


def _named(run: Run | str | Path) -> str:
    """The run's directory as the caller wrote it."""
    return str(run.path if isinstance(run, Run) else run)
