"""Whether the results that a run holds are as they were written.

Knows: which files hold results. Does not know: checkpoints, stores.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.analysis.classification import CLASSIFICATION
from cotswold.analysis.regression import REGRESSION
from cotswold.analysis.selectivity.results import EVALUATION
from cotswold.errors import RunError
from cotswold.run import RunDirectory


def verify_results(run: str | Path) -> list[str]:
    """A sentence about each result of a run that is damaged; empty where all are sound or not there."""
    directory = RunDirectory(Path(run).absolute())
    damaged = []
    for path, sealed in (
        (directory.evaluation, EVALUATION),
        (directory.classification, CLASSIFICATION),
        (directory.regression, REGRESSION),
    ):
        try:
            sealed.read(path)
        except RunError as error:
            damaged.append(str(error))
    return damaged
