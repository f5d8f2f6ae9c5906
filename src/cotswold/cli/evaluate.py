"""`cotswold evaluate`.

Knows: the arguments of the command. Does not know: the measurements, how results are shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def evaluate(
    run: Path,
    *,
    source: str | None = None,
    split: str | None = None,
    labels: Literal["folders", "file"] | None = None,
    positives: str | None = None,
    negatives: str | None = None,
    name: str = "object",
    layers: Annotated[list[str] | None, Parameter(negative=())] = None,
    control: Path | None = None,
    splits: int = 5,
    weights: str = "paper",
    stores: Path | None = None,
    threads: int | None = None,
    repeat: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure the selectivity of a run's neurons, or the accuracy of a supervised run.

    The selectivity is compared with random filters and k-means. A supervised run gets
    accuracy and confusion, or regression errors.

    Each test is saved in the run's directory when it is finished, for `cotswold report`;
    the same command continues with missing tests.

    Examples:

      cotswold evaluate runs/demo                 the tests that its recipe lists
      cotswold evaluate runs/mine --positives faces.zip --negatives other.zip
      cotswold evaluate runs/mine --positives a/ --negatives b/ --weights counts
      cotswold evaluate runs/labelled --source new/ --labels folders
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

    found = cotswold.evaluate(
        run,
        source=source,
        split=split,
        labels=labels,
        positives=positives,
        negatives=negatives,
        name=name,
        layers=layers or (),
        control=control,
        splits=splits,
        weights=weights,
        stores=stores,
        threads=threads,
        repeat=repeat,
        progress=True,
    )
    if json_:
        print(found.to_json())
        return
    from cotswold.analysis import Evaluation, Regression  # loads torch, so only after threads are set
    from cotswold.cli.support.evaluation_tables import print_confusion, print_errors, print_selectivity

    if isinstance(found, Evaluation):
        print_selectivity(found)
    elif isinstance(found, Regression):
        print_errors(found)
    else:
        print_confusion(found)
