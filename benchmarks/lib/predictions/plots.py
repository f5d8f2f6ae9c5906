"""Predictions of benchmarks/simulate.py as plots in the style of the papers' figures.

Knows: matplotlib, colours that are legible on light and dark pages. Does not know: how anything was
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK = "#6e7781"
COLOURS = ("#2f81d6", "#d9822b", "#8a6fc9", "#3f9a5b", "#c2554d", "#4a9ea1")
MARKS = "osD^vP"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "simulate",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.markersize": 4,
}
Rows = Sequence[Mapping[str, Any]]


def draw_all(found: Mapping[str, Any], folder: Path) -> None:
    """Write four plots."""
    with mpl.rc_context(STYLE):
        _coates(found["coates"]["networks"]).savefig(folder / "simulate-coates.svg", **KEPT)
        _distbelief(found["distbelief"], found["distbelief-10g"]).savefig(
            folder / "simulate-distbelief.svg", **KEPT
        )
        _adam(found["adam"]).savefig(folder / "simulate-adam.svg", **KEPT)
        _today(found["today"]).savefig(folder / "simulate-today.svg", **KEPT)


KEPT: dict[str, Any] = {"transparent": True, "metadata": {"Date": None}, "dpi": 130}


def _coates(networks: Mapping[str, Rows]) -> Figure:
    """Plot figures 5 and 6: seconds per update, and speed-up normalised by the number of parameters."""
    figure, (left, right) = _panels(2)
    counts = [row["ranks"] for row in networks["180 M"]]
    for (name, rows), colour, mark in zip(networks.items(), COLOURS, MARKS, strict=True):
        held = [row for row in rows if row["fits"]]
        x = [row["ranks"] for row in held]
        left.plot(x, [row["seconds"] for row in held], color=colour, marker=mark, label=name)
        right.plot(x, [row["speed_up"] for row in held], color=colour, marker=mark)
    right.plot(counts, counts, color=INK, linestyle="--", linewidth=1, label="linear")
    left.set(title="Seconds per update", ylabel="s", yscale="log")
    right.set(title="Speed-up over one GPU, by parameters", ylabel="speed-up")
    right.set_yscale("log", base=2)
    right.set_yticks(counts, [str(count) for count in counts])
    for axes in (left, right):
        _counts(axes, counts, "GPUs (GTX 680, 4 per host)")
    _legend(figure, 7)
    return figure


def _distbelief(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> Figure:
    """Plot figure 3: speed-up over one machine; crosses mark the figures in the paper's text."""
    figure, panels = _panels(2)
    for axes, found, title in zip(
        panels, (slow, fast), ("1 Gbit/s per machine", "10 Gbit/s per machine"), strict=True
    ):
        first = axes is panels[0]
        for (name, rows), colour, mark in zip(found["networks"].items(), COLOURS, MARKS, strict=False):
            weights = rows[0]["parameters"]
            label = f"{name}: {weights / 1e9:.2f} B" if weights >= 1e9 else f"{name}: {weights / 1e6:.0f} M"
            x, y = [row["ranks"] for row in rows], [row["speed_up"] for row in rows]
            axes.plot(x, y, color=colour, marker=mark, label=label if first else None)
        for x_, y_, colour in ((8, 2.2, COLOURS[0]), (81, 12, COLOURS[3])):
            said = "stated in the paper" if first and x_ == 81 else None
            axes.plot(
                x_, y_, color=colour, marker="x", markersize=9, markeredgewidth=2, linestyle="", label=said
            )
        axes.set(title=title, ylabel="speed-up over one machine", ylim=(0, 16 if first else None))
        axes.set_xlabel("machines of one network")
        axes.set_xlim(0, 132)
        axes.grid(color=INK, alpha=0.2, linewidth=0.6)
    _legend(figure, 3)
    return figure


def _adam(found: Mapping[str, Any]) -> Figure:
    """Plot figure 10: size of the network by machines."""
    figure, (left, right) = _panels(2)
    rows = found["sizes"]
    x = [row["machines"] for row in rows]
    sizes = [row["connections"] / 1e9 for row in rows]
    left.plot(x, sizes, color=COLOURS[0], marker="o", label="predicted: convolutions fit the caches")
    left.plot(
        x,
        [sizes[0] * n for n in x],
        color=INK,
        linestyle="--",
        linewidth=1,
        label="proportional to machines",
    )
    left.plot(
        16,
        36,
        color=COLOURS[1],
        marker="x",
        markersize=9,
        markeredgewidth=2,
        linestyle="",
        label="stated in the paper",
    )
    left.set(title="Size of the network", ylabel="billion connections")
    name = "billion_connections_per_second_and_machine"
    same = found["two_billion"]
    right.plot(x, [row[name] for row in rows], color=COLOURS[0], marker="o")
    right.plot(
        x, [row[name] for row in same], color=COLOURS[3], marker="^", label="predicted: the 2 billion network"
    )
    right.set(title="Speed of a machine", ylabel="billion connections per second", ylim=(0, None))
    for axes in (left, right):
        _counts(axes, x, "machines")
    _legend(figure, 2)
    return figure


def _today(runs: Mapping[str, Rows]) -> Figure:
    """Plot seconds per update and efficiency on clusters of today."""
    figure, (left, right) = _panels(2)
    counts = sorted({row["ranks"] for rows in runs.values() for row in rows})
    for (name, rows), colour, mark in zip(runs.items(), COLOURS, MARKS, strict=False):
        held = [row for row in rows if row["fits"]]
        x = [row["ranks"] for row in held]
        left.plot(x, [row["seconds"] for row in held], color=colour, marker=mark, label=name)
        right.plot(x, [100 * row["efficiency"] for row in held], color=colour, marker=mark)
    left.set(title="Seconds per update", ylabel="s", yscale="log")
    right.set(title="Fraction of the devices' peak", ylabel="%", ylim=(0, 100))
    for axes in (left, right):
        _counts(axes, counts, "ranks (8 per host: h100-rack; 1 per host: ethernet)")
    _legend(figure, 2)
    return figure


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(8.3, 3.6), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06))
    figure.patch.set_alpha(0)
    axes = figure.subplots(1, count)
    for each in axes:
        each.patch.set_alpha(0)
    return figure, axes


def _counts(axes: Axes, counts: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(color=INK, alpha=0.2, linewidth=0.6)


def _legend(figure: Figure, columns: int) -> None:
    figure.legend(loc="outside lower center", ncols=columns)
