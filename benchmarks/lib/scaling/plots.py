"""The result of `bench scaling` as two plots: efficiencies of ranks, and messages.

Knows: matplotlib, colours that are legible on light and dark pages. Does not know: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.measure import Document

_INK = "#6e7781"
"""A grey with contrast 4.5 on white and 4.2 on a dark page."""
_MET, _MISSED, _SHOWN = "#2f81d6", "#d9822b", "#8a6fc9"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "scaling",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "ytick.major.size": 0,
}
_WIDE_INCHES, _ROW_INCHES = 8.3, 0.27
_KEY = "dashed: the bar; blue: reached; orange: missed; violet: no bar; whiskers: quartiles"


@dataclass(frozen=True)
class _Panel:
    """A panel of a group: one verdict of each row."""

    group: str
    title: str
    verdict: int = 0


_RANKS = (
    _Panel("weak", "Twice the map: time of one process over time of two ranks"),
    _Panel("strong", "The same map: half the time of one process over time of two ranks"),
)
_MESSAGES = (
    _Panel("exchange", "Exchanges: rate over that of raw messages"),
    _Panel("hidden", "Fraction of the messages' time without a blocked rank", verdict=1),
    _Panel("hidden", "Fraction of the messages' time that does not lengthen a step"),
)


def draw_ranks(found: Document, file: Path) -> bool:
    """Plot efficiencies of two ranks, a bar per stack, grid and operation. Return False if there are none."""
    return _draw(found, file, _RANKS)


def draw_messages(found: Document, file: Path) -> bool:
    """Plot exchanges relative to raw messages, and their hidden fractions. Return False if there are none."""
    return _draw(found, file, _MESSAGES)


def _draw(found: Document, file: Path, wanted: Sequence[_Panel]) -> bool:
    """Plot bars to the median, whiskers to the quartiles, and a line at the bar."""
    rows = found["rows"]
    assert isinstance(rows, list), "a result has rows"
    panels = [(panel, [row for row in rows if row["group"] == panel.group]) for panel in wanted]
    panels = [(panel, mine) for panel, mine in panels if mine]
    if not panels:
        return False
    heights = [len(mine) for _, mine in panels]
    with mpl.rc_context(_STYLE):
        figure = Figure(
            figsize=(_WIDE_INCHES, _ROW_INCHES * sum(heights) + 0.9 * len(panels) + 0.3), layout="constrained"
        )
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for axis, (panel, mine) in zip(axes[:, 0], panels, strict=True):
            _bars(axis, panel, mine)
        figure.supxlabel(_KEY, fontsize=9)
        figure.patch.set_alpha(0)
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, transparent=True, metadata=metadata, dpi=130)
    return True


def _bars(axis: Any, panel: _Panel, rows: Sequence[Any]) -> None:
    axis.set_title(panel.title, fontsize=10, loc="left")
    axis.patch.set_alpha(0)
    axis.grid(axis="x", color=_INK, alpha=0.2, linewidth=0.6)
    axis.set_axisbelow(True)
    places = [len(rows) - 1 - number for number in range(len(rows))]
    axis.set_yticks(places, [f"{row['shape']}, {row['operation']}" for row in rows])
    verdicts = [row["verdicts"][panel.verdict] for row in rows]
    for place, verdict in zip(places, verdicts, strict=True):
        ratio = verdict["ratio"]
        whiskers = [[ratio["median"] - ratio["lower"]], [ratio["upper"] - ratio["median"]]]
        style = {"ecolor": _INK, "elinewidth": 0.8}
        colour = {True: _MET, False: _MISSED, None: _SHOWN}[verdict["met"]]
        axis.barh([place], [ratio["median"]], height=0.7, color=colour, xerr=whiskers, error_kw=style)
        beside = ("axes fraction", "data")  # in a column beside the plot, clear of lines
        axis.annotate(f"{ratio['median']:.2f}", (1.01, place), xycoords=beside, va="center")
    for bar in {verdict["bar"] for verdict in verdicts} - {None}:
        axis.axvline(bar, color=_INK, linewidth=1.2, linestyle="--")
    axis.axvline(0, color=_INK, linewidth=0.8)


PLOTS: dict[str, Callable[[Document, Path], bool]] = {
    "scaling.svg": draw_ranks,
    "scaling-messages.svg": draw_messages,
}
"""Plots of a result, by file name."""
