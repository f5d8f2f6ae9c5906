"""Line plots: in matplotlib axes, or as small SVG texts with the colours of a page.

Knows: matplotlib without its global state (pyplot), colours as CSS variables, so that one drawing serves
light and dark pages. Does not know: the meaning of the numbers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

Scale = Literal["linear", "log", "symlog"]
"""Scale of y; symlog is linear up to 1 and logarithmic above, so that 0 is on it."""
INK, FAINT_COLOUR = "#010203", "#010204"
SERIES = ("#010211", "#010212", "#010213", "#010214")
"""Placeholder colours: each stands for a CSS variable of the page."""
_VARIABLES = {
    INK: "--ink-2",
    FAINT_COLOUR: "--line",
    **{colour: f"--s{i}" for i, colour in enumerate(SERIES, 1)},
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.edgecolor": FAINT_COLOUR,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT_COLOUR,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "path.simplify": True,
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True)
class Line:
    """A curve.

    ``colour`` is an index into the page's series, from 0. ``dots`` marks every point; a single point is
    always marked.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dots: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Band:
    """A labelled, shaded range; of x if ``axis`` is "x"."""

    low: float
    high: float
    label: str
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True)
class Palette:
    """Colours of lines, in order, and of bands."""

    series: Sequence[str] = ("#2f6db5", "#c9622b", "#3a8a5c", "#8a5aa8")
    """Default: the page's colours in light mode."""
    shade: str = "#e4e1da"


def draw(
    axes: Axes,
    lines: Sequence[Line],
    palette: Palette,
    *,
    x: str,
    y: str,
    bands: Sequence[Band] = (),
    scale: Scale = "linear",
    bottom: float | None = None,
    top: float | None = None,
    x_ticks: Sequence[float] = (),
) -> None:
    """Draw lines and bands with their labels; with a legend if there are several.

    With ``x_ticks``, x is logarithmic and has these ticks.
    """
    for band in bands:
        span = axes.axvspan if band.axis == "x" else axes.axhspan
        span(band.low, band.high, color=palette.shade, alpha=0.45, linewidth=0, label=band.label)
    for line in lines:
        axes.plot(
            line.x,
            line.y,
            color=palette.series[line.colour % len(palette.series)],
            linewidth=1.6,
            linestyle="--" if line.dashed else "-",
            marker="o" if line.dots or len(line.x) == 1 else None,
            markersize=4,
            label=line.label,
        )
    axes.set(xlabel=x, ylabel=y)
    if scale == "symlog":
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=[1, 2, 5]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))
    else:
        axes.set_yscale(scale)
    if x in ("step", "samples"):  # only integers exist
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value)))
    if x_ticks:
        axes.set_xscale("log")
        axes.set_xticks(x_ticks, [tick_label(tick) for tick in x_ticks])
        axes.minorticks_off()
    axes.set_ylim(bottom=bottom, top=top)
    axes.margins(x=0.01)
    if len(lines) + len(bands) > 1:
        axes.legend(fontsize=8.5, handlelength=1.4)


def tick_label(value: float) -> str:
    """Return a number as a tick label, with k for thousands and M for millions.

    >>> tick_label(500), tick_label(15_000), tick_label(2_500_000)
    ('500', '15k', '2.5M')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def plot(
    name: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    bands: Sequence[Band] = (),
    scale: Scale = "linear",
    bottom: float | None = None,
    top: float | None = None,
    x_ticks: Sequence[float] = (),
) -> str:
    """Return an ``<svg>`` element of some kilobytes; ``name`` makes its ids unique on a page."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(4.2, 2.6), layout="constrained")
        axes = figure.subplots()
        palette = Palette(series=SERIES, shade=FAINT_COLOUR)
        draw(
            axes, lines, palette, x=x, y=y, bands=bands, scale=scale, bottom=bottom, top=top, x_ticks=x_ticks
        )
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _embed_svg(buffer.getvalue())


def _embed_svg(svg: str) -> str:
    """Return the element alone, without a width, its colours replaced by CSS variables."""
    svg = svg[svg.index("<svg") :]
    start, end = svg.index("<metadata>"), svg.index("</metadata>") + len("</metadata>")
    svg = svg[:start] + svg[end:]
    head, _, body = svg.partition(">")
    box = head[head.index('viewBox="') :].split('"')[1]
    body = re.sub(r"<style.*?</style>| font-family: [^;]*;|(?<=<g) id=\"[^\"]*\"", "", body, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    return f'<svg viewBox="{box}" role="img" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'
