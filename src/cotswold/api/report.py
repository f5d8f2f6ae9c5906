"""The report of a run.

Knows: the contents of the page, replacements for missing parts. Does not know: its layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.threads import compute_threads
from cotswold.run import RunDirectory
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.data import Transform
    from cotswold.nn import StackNetwork


def write_report(run: RunDirectory, name: str, threads: int | None, progress: bool | None) -> Path:
    """Write the report of a run, which the page calls ``name``; arguments as for `cotswold.report`."""
    from cotswold.recipe import load

    recipe, display = load(run.recipe), display_for(progress)
    with compute_threads(threads, recipe), display.stages() as told:
        from cotswold import analysis, training

        told("drawing", 0)
        found = _ReadableParts()
        if recipe.network.stacks:
            _read_parts(found, run)
        store = training.open_original_store(run)
        path = analysis.build_report(
            run,
            found.network,
            found.transform,
            left_out=None
            if store is None
            else analysis.SkippedSamples(*store.broken, store.preparation_notes),
            problems=found.problems,
            name=name,
        )
    for problem in found.problems:
        display.show(problem)
    return path


@dataclass
class _ReadableParts:
    """The readable parts of a run's newest checkpoint, and the errors of the others."""

    network: StackNetwork | None = None
    transform: Transform | None = None
    problems: list[str] = field(default_factory=list)


def _read_parts(found: _ReadableParts, run: RunDirectory) -> None:
    from cotswold import training
    from cotswold.data import Transform
    from cotswold.errors import CotswoldError

    try:
        trained = training.trained_stacks(run)
    except CotswoldError as error:  # no checkpoint, damaged, or too large for this machine
        found.problems.append(f"the report contains no filters: {error}")
        return
    found.network = trained.network
    try:
        transform = trained.prepared.transform
        found.transform = transform if isinstance(transform, Transform) else None  # only images are shown
    except CotswoldError as error:  # the checkpoint is damaged
        found.problems.append(f"filters are shown whitened: {error}")
