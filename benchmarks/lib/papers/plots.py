"""Plots and texts that several papers' parts use.

Knows: lines, figures of a page. Does not know: papers.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.analysis.plots import Line, Scale, plot
from cotswold.analysis.report.blocks import Drawing, Figure


def figure(
    name: str,
    caption: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    scale: Scale = "linear",
    bottom: float | None = None,
) -> Figure:
    """Return a plot with its caption; ``name`` must be unique on the page."""
    return Figure(Drawing(plot(name, lines, x=x, y=y, scale=scale, bottom=bottom)), caption)


def times(value: float) -> str:
    """Return a factor in words."""
    return f"{value:.3g} times"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean of fractions as per cent, with the least and the greatest if there are several."""
    mean = 100 * sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f} %, one seed"
    least, greatest = 100 * min(values), 100 * max(values)
    return f"{mean:.{digits}f} % ({least:.{digits}f} to {greatest:.{digits}f}, {len(values)} seeds)"
