"""Plot a controller's processor time by number of servers, on logarithmic axes.

Knows: matplotlib, the style of the kernel plots. Does not know: how anything was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.kernels.plots import INK, STYLE, save
from cotswold.bench.measure import Document

_LINES = {
    "with_messages": "heartbeats of one second",
    "create": "creation of all buckets",
    "load": "change of leader",
    "death": "death of a server",
}
_COLOURS = ("#2f6db5", "#c9622b", "#3a8a5c", "#8a5aa8")


def draw(result: Document, file: Path) -> bool:
    """Plot a line for each figure, and linear growth. Return False if there is only one size."""
    rows: Any = result["table"]
    sizes = [row["servers"] for row in rows]
    if len(sizes) < 2:
        return False
    exponents: Any = result["exponents"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        for (name, label), colour in zip(_LINES.items(), _COLOURS, strict=True):
            values = [max(float(row[name]), 1e-4) for row in rows]
            said = f"{label}: grows by the power {exponents[name]:g}"
            axis.plot(sizes, values, color=colour, marker="o", markersize=3.5, label=said)
        first = float(rows[0]["with_messages"])
        line = [first * size / sizes[0] for size in sizes]
        axis.plot(sizes, line, color=INK, linewidth=0.8, linestyle="--", label="linear")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("servers, each the primary of a hundred buckets with three copies", loc="right")
        axis.set_ylabel("processor seconds of the controller")
        axis.legend(fontsize=7.5)
        save(figure, file)
    return True
