"""`cotswold predict`.

Knows: the arguments of the command, the columns of its output. Does not know: networks.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotswold.cli.support.json_output import Json, print_json

if TYPE_CHECKING:
    from cotswold.api.inference.predict import PredictionInputs

Row = tuple[Any, ...]
"""Cells of an output row: names, numbers."""


def predict(
    run: Path,
    source: str,
    *,
    top: int = 1,
    threads: int | None = None,
    json_: Json = False,
) -> None:
    """Predict the classes of samples with a supervised run; print CSV.

    The columns are image (or vector, or row), class, probability. A regression run prints a line per target:
    image (or vector, or row), number, value.

    Examples:

      cotswold predict runs/cifar10 photographs/ > classes.csv
      cotswold predict runs/cifar10 photographs.zip --top 3 --json
      cotswold predict runs/cifar10 photograph.jpg --top 3

    Parameters
    ----------
    run
        The directory of a supervised run.
    source
        A folder, zip or array file of images, vectors or frames, one image, or a CSV or Parquet file with the
        columns of the run in any order; prepared like the run's own samples.
    top
        Number of classes to print per sample, the most likely first.
    threads
        Compute threads. Default: the run's number, or all cores granted to this process.
    json_
        Print one JSON object per line instead.
    """
    import cotswold
    from cotswold.api.inference.predict import open_prediction
    from cotswold.errors import UserError

    if top < 1:
        raise UserError(f"--top must be at least 1, got {top}")
    kind = cotswold.Run(run).recipe.data.type
    sample = "row" if kind == "table" else kind.removesuffix("s")
    with open_prediction(run, source, threads, progress=True) as work:
        heading = (sample, "class", "probability") if work.classes else (sample, "number", "value")
        rows = _rows(work, top)
        first = next(rows)  # most failures happen here, before anything is printed
        (_as_json if json_ else _as_csv)(heading, chain([first], rows))
        work.skipped()
        work.table_notes()


def _as_json(heading: Row, rows: Iterable[Row]) -> None:
    for row in rows:
        print_json("predict", dict(zip(heading, row, strict=True)))


def _as_csv(heading: Row, rows: Iterable[Row]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(heading)
    shown = ".4f" if "probability" in heading else ".6g"
    writer.writerows((name, label, format(value, shown)) for name, label, value in rows)


def _rows(work: PredictionInputs, top: int) -> Iterator[Row]:
    """Yield sample, class and probability; for regression sample, number of the output and value."""
    for names, likely in work.batches():
        if not work.classes:  # regression: all outputs
            for name, row in zip(names, likely.tolist(), strict=True):
                yield from ((name, number, value) for number, value in enumerate(row))
            continue
        values, classes = likely.topk(min(top, likely.shape[1]), dim=1)
        for name, row, labels in zip(names, values.tolist(), classes.tolist(), strict=True):
            for probability, label in zip(row, labels, strict=True):
                yield name, work.classes[label], probability
