"""Check the integrity of a run's results.

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
    """Return a sentence about each damaged result of a run.

    Args:
        run: the run's directory.

    Returns:
        Sentences; empty if all results are intact or missing.
    """
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
