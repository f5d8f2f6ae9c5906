"""Figures of a trained network, for the loggers of its run.

Knows: which runs have figures, the format PNG. Does not know: loggers, how a figure is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from cotswold.api.run import Run

_BYTES_MAX = 256 << 20
"""Size of the newest checkpoint up to which its network is loaded again for figures."""


def run_figures(path: Path) -> Mapping[str, bytes]:
    """Return the filters of every stack as PNG files by name; none for other networks, and large ones."""
    run = Run(path)
    paths = run.checkpoints
    if not run.recipe.network.stacks or not paths:
        return {}
    if sum(file.stat().st_size for file in paths[-1].iterdir()) > _BYTES_MAX:
        return {}
    found = {}
    for number in range(1, len(run.recipe.network.stacks) + 1):
        png = io.BytesIO()
        run.filters(number).savefig(png, format="png", dpi=100)
        found[f"filters of stack {number}"] = png.getvalue()
    return found
