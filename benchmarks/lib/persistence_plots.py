"""persistence.svg: throughput with disks relative to throughput without, by number of copies.

Knows: matplotlib, the cells. Does not know: how anything was measured.
"""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from cotswold.bench.kernels.plots import STYLE
from cotswold.bench.measure import Document


def drawing(found: Document) -> str:
    """Return a plot with a dot per round, a line for the median, and the bar."""
    told, machine, cells = (found[name] for name in ("summary", "machine", "cells"))
    summary: Any = told
    rounds: Any = cells
    of: Any = machine
    with mpl.rc_context({**STYLE, "svg.hashsalt": "persistence", "font.size": 8}):
        canvas = Canvas(figsize=(4.5, 3.0), layout="constrained")
        canvas.patch.set_alpha(0)
        axes = canvas.add_subplot()
        axes.patch.set_alpha(0)
        for place, (copies, each) in enumerate(summary.items()):
            ratios = [cell["ratio"] for cell in rounds.values() if str(cell["copies"]) == copies]
            axes.plot([place] * len(ratios), ratios, "o", color="tab:blue", alpha=0.5, markersize=4)
            axes.hlines(each["ratio"]["median"], place - 0.25, place + 0.25, color="tab:blue")
            axes.hlines(each["bar"], place - 0.4, place + 0.4, color="tab:red", linestyle="dashed")
        axes.set_xticks(
            range(len(summary)), [f"{copies} {'copy' if copies == '1' else 'copies'}" for copies in summary]
        )
        axes.set_ylabel("samples per second with disks,\nrelative to those without")
        axes.set_title(f"{of['cores']} cores of {of['processor']}", fontsize=8, loc="left")
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
