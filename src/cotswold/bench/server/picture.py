"""The result of `bench server` as a picture: which share of its limit every operation reaches.

Knows: matplotlib, the style of the pictures of kernels. Does not know: how anything was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.kernels.picture import BLUE, INK, STYLE, WIDE_INCHES, save
from cotswold.bench.measure import Document

_ROW_INCHES = 0.22


def draw(server: Document, file: Path) -> bool:
    """A bar for each operation with its quartiles, a line at the bar; on the greatest number of threads.

    The kind of picture follows from the name of the file (.svg, .png). False where nothing was measured.
    """
    every: Any = server["rows"]
    threads = max((row["threads"] for row in every), default=0)
    rows = [row for row in every if row["threads"] == threads]
    lines = [(row, one) for row in rows for one in row["verdicts"] if one["bar"] is not None][::-1]
    if not lines:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES, 1.2 + _ROW_INCHES * len(lines)), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        medians = [one["ratio"]["median"] for _, one in lines]
        errors = [
            [one["ratio"]["median"] - one["ratio"]["lower"] for _, one in lines],
            [one["ratio"]["upper"] - one["ratio"]["median"] for _, one in lines],
        ]
        axis.barh(range(len(lines)), medians, xerr=errors, color=BLUE, ecolor=INK, height=0.7)
        for bar in sorted({one["bar"] for _, one in lines}):
            axis.axvline(bar, color=INK, linewidth=1.2, linestyle="--")
        labels = [f"{row['shape']}: {row['operation']} ({one['against']})" for row, one in lines]
        axis.set_yticks(range(len(lines)), labels)
        word = "thread" if threads == 1 else "threads"
        axis.set_xlabel(f"share of the limit in brackets, {threads} {word}")
        save(figure, file)
    return True
