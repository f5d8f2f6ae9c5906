"""`cotswold predict`.

Knows: the words of the command, the columns of its answer. Does not know: networks.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def predict(
    run: Path,
    source: str,
    *,
    top: int = 1,
    stores: Path | None = None,
    threads: int | None = None,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """Name the classes of pictures with a supervised run; prints CSV: picture, class, probability.

    Examples:

      cotswold predict runs/cifar10 photographs/ > classes.csv
      cotswold predict runs/cifar10 photographs.zip --top 3 --json

    Parameters
    ----------
    run
        The directory of a supervised run.
    source
        A folder, zip or array file of pictures; they are prepared as the run's own were.
    top
        How many classes to name for each picture, the likeliest first.
    stores
        Where prepared pictures are kept; only runs of before checkpoints knew their preparation need it.
    threads
        Threads of computation; the run's own number, or all cores that this process is granted, by default.
    json_
        Print one JSON object a line instead.
    """
    import cotswold
    from cotswold.errors import UserError

    if top < 1:
        raise UserError(f"--top {top} names no class; give 1 or more")
    sample = cotswold.Run(run).recipe.data.type.removesuffix("s")
    rows = _rows(run, source, top, stores, threads)
    first = next(rows)  # what fails at all mostly fails here, before anything is printed
    rows = chain([first], rows)
    if json_:
        for name, label, probability in rows:
            print(json.dumps({sample: name, "class": label, "probability": probability}))
        return
    writer = csv.writer(sys.stdout)
    writer.writerow((sample, "class", "probability"))
    writer.writerows((name, label, f"{probability:.4f}") for name, label, probability in rows)


def _rows(
    run: Path, source: str, top: int, stores: Path | None, threads: int | None
) -> Iterator[tuple[str, str, float]]:
    """Sample, class and probability, or number of an output and its value; the first comes as soon as one
    batch has been answered."""
    from cotswold.api.predict import answering

    with answering(run, source, stores, threads, progress=True) as work:
        for names, likely in work.batches():
            if not work.classes:  # numbers were learnt, and all of them are asked for
                for name, row in zip(names, likely.tolist(), strict=True):
                    yield from ((name, str(number), value) for number, value in enumerate(row))
                continue
            values, classes = likely.topk(min(top, likely.shape[1]), dim=1)
            for name, row, labels in zip(names, values.tolist(), classes.tolist(), strict=True):
                for probability, label in zip(row, labels, strict=True):
                    yield name, work.classes[label], probability
        work.left_out()
