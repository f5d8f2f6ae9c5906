"""`cotswold evaluate`.

Knows: the words of the command. Does not know: what is measured, how results are shown.
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
    anew: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Measure how selective a run's neurons are, beside random filters and k-means; for a supervised run,
    accuracy and confusion, or the errors of the numbers that it predicts.

    Every test is kept in the run's directory as soon as it is finished, where
    `cotswold report` finds it; the same command goes on with those that are missing.

    Examples:

      cotswold evaluate runs/demo                 the tests that its recipe names
      cotswold evaluate runs/mine --positives faces.zip --negatives other.zip
      cotswold evaluate runs/mine --positives a/ --negatives b/ --weights counts
      cotswold evaluate runs/labelled --source new/ --labels folders
      cotswold evaluate runs/mine --layers 1.output --layers 3.pooled --json

    Parameters
    ----------
    run
        The run's directory.
    source
        A source of labelled samples on which a supervised run is judged, instead of its own.
    split
        The split of its own samples on which a supervised run is judged: train, validation or test; test by
        default, validation without one.
    labels
        Where the labels of the source are: folders (the parent folder is the class) or file; as the run's own
        by default.
    positives
        A source of pictures that show the object.
    negatives
        A source of pictures that do not.
    name
        What the object is called in the table.
    layers
        Layers whose neurons are tested, such as 2.pooled (filters, pooled or output); the output of every
        stack by default. May be given again.
    control
        Another run (trained on other pictures, say) whose neurons are tested beside.
    splits
        Random splits into halves for the held-out accuracy, 1 to 35.
    weights
        What positives and negatives weigh in an accuracy: `paper` (0.353 to 0.647, whatever their numbers, so
        that guessing gives 0.647 as in the paper), `equal`, `counts` (every picture the same, so that
        guessing gives the part of the larger class), or the weight of the positives, between 0 and 1.
    stores
        Where prepared samples are kept, if not where they were when the run began.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    anew
        Test again what was tested before in the same way.
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
        anew=anew,
        progress=True,
    )
    if json_:
        print(found.to_json())
        return
    from cotswold.analysis import Evaluation, Regression  # not before threads are chosen: it loads torch
    from cotswold.cli.support.evaluation_tables import print_confusion, print_errors, print_selectivity

    if isinstance(found, Evaluation):
        print_selectivity(found)
    elif isinstance(found, Regression):
        print_errors(found)
    else:
        print_confusion(found)
