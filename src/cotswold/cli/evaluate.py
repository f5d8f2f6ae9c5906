"""`cotswold evaluate`.

Knows: the arguments of the command. Does not know: the measurements, how results are shown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from cotswold.cli.support.json_output import Json, print_json
from cotswold.cli.support.number_lists import numbers_of

if TYPE_CHECKING:
    from cotswold.analysis import Classification, Evaluation, Regression

_FEW_LABELS = "--few-labels must be numbers of labelled images, as in 1,2,5"


def evaluate(
    run: Path,
    *,
    source: str | None = None,
    split: str | None = None,
    labels: Literal["folders", "file"] | None = None,
    metrics: Annotated[list[str] | None, Parameter(negative=())] = None,
    positives: str | None = None,
    negatives: str | None = None,
    name: str = "object",
    layers: Annotated[list[str] | None, Parameter(negative=())] = None,
    control: Path | None = None,
    splits: int = 5,
    weights: str = "paper",
    few_labels: str | None = None,
    draws: int | None = None,
    stores: Path | None = None,
    threads: int | None = None,
    repeat: Annotated[bool, Parameter(negative=())] = False,
    json_: Json = False,
) -> None:
    """Measure the accuracy or errors of a supervised run, or the selectivity of a run's neurons.

    A supervised run gets accuracy and confusion, or regression errors, and the metrics of its recipe,
    on its test samples. A run of stacks, which learnt without labels, gets the selectivity of its neurons,
    compared with random filters and k-means; it needs --positives and --negatives, or a recipe with tests.

    Each test is saved in the run's directory when it is finished, for `cotswold report`;
    the same command continues with missing tests.

    Examples:

      cotswold evaluate runs/labelled             accuracy on its test samples
      cotswold evaluate runs/labelled --source new/ --labels folders
      cotswold evaluate runs/labelled --metrics top5 --metrics macro_f1
      cotswold evaluate runs/bank --source customers.csv --metrics auroc     a table
      cotswold evaluate runs/demo                 the tests that its recipe lists
      cotswold evaluate runs/mine --positives faces.zip --negatives other.zip
      cotswold evaluate runs/mine --positives a/ --negatives b/ --weights counts
      cotswold evaluate runs/mine --positives a/ --negatives b/ --few-labels 1,5,20
      cotswold evaluate runs/mine --layers 1.output --layers 3.pooled --json

    Parameters
    ----------
    run
        The run's directory.
    source
        A source of labelled samples to evaluate a supervised run on. Default: the run's samples.
    split
        The split of the run's samples to evaluate a supervised run on: train, validation or test. Default:
        test, or validation without one.
    labels
        Location of the source's labels: folders (the parent folder is the class) or file. Default: as for the
        run's own samples.
    metrics
        A metric of a supervised run: top5 (any k), macro_f1, macro_precision, macro_recall, auroc, mae, rmse
        or r2; may be given again. Default: those of the recipe.
    positives
        A source of images that show the object.
    negatives
        A source of images that do not.
    name
        Name of the object in the table.
    layers
        Layers whose neurons are tested, such as 2.pooled (filters, pooled or output); may be given again.
        Default: the output of every stack.
    control
        Another run, such as one trained on other images, whose neurons are tested for comparison.
    splits
        Number of random splits into halves for the held-out accuracy, 1 to 35.
    weights
        Class weights of an accuracy: `paper` (0.353 to 0.647, for any numbers of images, so that guessing
        gives 0.647 as in the paper), `equal`, `counts` (all images weigh the same, so that guessing gives the
        fraction of the larger class), or the weight of the positives, between 0 and 1.
    few_labels
        Numbers of labelled images of each class, as in 1,2,5. A classifier learns from them, on responses
        of the network, on those of random filters, k-means and the control, and on pixels. Default:
        those of the recipe's tests.
    draws
        Number of random draws of the labelled images, at least 2. Default: 50.
    stores
        Folder for prepared samples. Default: the folder that the run used.
    threads
        Compute threads. Default: the run's number, or all cores granted to this process.
    repeat
        Repeat tests that already have a result.
    json_
        Print the whole result as JSON.
    """
    import cotswold
    from cotswold.errors import UserError

    found: Evaluation | Classification | Regression
    if cotswold.Run(run).recipe.network.stacks:
        labelled = {"source": source, "split": split, "labels": labels, "metrics": metrics}
        if useless := [f"--{each}" for each, value in labelled.items() if value is not None]:
            raise UserError(
                f"{run} was trained without labels and has no accuracy; omit {' and '.join(useless)}, and "
                "test its neurons with --positives and --negatives"
            )
        found = cotswold.selectivity(
            run,
            positives=positives,
            negatives=negatives,
            name=name,
            layers=layers or (),
            control=control,
            splits=splits,
            weights=weights,
            few_labels=numbers_of(few_labels, _FEW_LABELS),
            draws=draws,
            stores=stores,
            threads=threads,
            repeat=repeat,
            progress=True,
        )
    else:
        neurons: dict[str, object] = {"positives": positives, "negatives": negatives, "layers": layers}
        neurons |= {"control": control, "few-labels": few_labels, "draws": draws}
        if useless := [f"--{each}" for each, value in neurons.items() if value is not None]:
            raise UserError(
                f"{run} is a supervised run, which is tested on labelled samples; omit "
                f"{' and '.join(useless)}"
            )
        found = cotswold.evaluate(
            run,
            source=source,
            split=split,
            labels=labels,
            metrics=metrics,
            stores=stores,
            threads=threads,
            progress=True,
        )
    if json_:
        print_json("evaluate", json.loads(found.to_json()))
        return
    from cotswold.cli.support.evaluation_tables import show  # loads torch, so only after threads are set

    show(found)
