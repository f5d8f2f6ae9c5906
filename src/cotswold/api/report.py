"""The report of a run.

Knows: the contents of the page, replacements for missing parts. Does not know: its layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.run import Run
from cotswold.api.threads import computing
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Transform
    from cotswold.nn import StackNetwork


def report(
    run: Run | str | Path,
    *,
    threads: int | None = None,
    progress: bool | None = None,
) -> Path:
    """Write a run's report, one HTML page without external resources, and return its path.

    The run may be in progress. Damaged parts are left out and named on the page.

    Args:
        run: The run, or its directory.
        threads: Number of threads. [as in the recipe, else all cores]
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        RunError: if the directory contains no run.
    """
    known, display = Run(run), display_for(progress)
    recipe = known.recipe
    with computing(threads, recipe), display.stages() as told:
        from cotswold import analysis, training

        told("drawing", 0)
        found = _Found()
        if recipe.network.stacks:
            _look(found, known)
        store = training.kept_store(known.directory)
        path = analysis.build_report(
            known.directory,
            found.network,
            found.transform,
            left_out=None if store is None else analysis.LeftOut(*store.broken, store.remarks),
            problems=found.problems,
            name=str(run.path if isinstance(run, Run) else run),
        )
    for problem in found.problems:
        display.say(problem)
    return path


@dataclass
class _Found:
    """The readable parts of a run's newest checkpoint, and the errors of the others."""

    network: StackNetwork | None = None
    transform: Transform | None = None
    problems: list[str] = field(default_factory=list)


def _look(found: _Found, run: Run) -> None:
    from cotswold import training
    from cotswold.data import Transform
    from cotswold.errors import CotswoldError

    try:
        trained = training.trained_stacks(run.directory)
    except CotswoldError as error:  # no checkpoint, damaged, or too large for this machine
        found.problems.append(f"the report contains no filters: {error}")
        return
    found.network = trained.network
    try:
        transform = trained.prepared.transform
        found.transform = transform if isinstance(transform, Transform) else None  # only images are shown
    except CotswoldError as error:  # the checkpoint is damaged
        found.problems.append(f"filters are shown whitened: {error}")
