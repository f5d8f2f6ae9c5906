"""Figures 6 and 8 of Aberdeen et al. 2000 as plots: simulated, and measured here.

Knows: matplotlib. Does not know: how anything was predicted or measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.predictions.plots import COLOURS, INK, KEPT, MARKS, STYLE


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Write two plots: bunyip-figure-6.svg and bunyip-figure-8.svg."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "bunyip"}):
        for name, make in (("bunyip-figure-6", _figure_6), ("bunyip-figure-8", _figure_8)):
            make(found).savefig(folder / f"{name}.svg", **KEPT)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=INK, alpha=0.2)
    return figure, axes


def _figure_6(found: Mapping[str, Any]) -> Figure:
    figure, axes = _axes()
    rows = found["figure 6"]
    x = [row["patterns"] for row in rows]
    lines = [
        ("from the stated seconds", "the paper's 8.5 s over its 4.9 s"),
        ("predicted, in turn", "predicted: tree in turn over four stages"),
        ("predicted, host by host", "predicted: tree host by host over four stages"),
        ("Cotswold's choice", "predicted: tree in turn over Cotswold's choice"),
    ]
    for (name, label), colour, mark in zip(lines, COLOURS, MARKS, strict=False):
        axes.plot(x, [row[name] for row in rows], color=colour, marker=mark, label=label)
    measured = found.get("here", {}).get("figure 6", [])
    if measured:
        axes.plot(
            [row["patterns"] for row in measured],
            [row["speed_up"] for row in measured],
            color=COLOURS[4],
            linestyle="--",
            label="eight workers of this machine, reductions measured",
        )
    axes.set_xscale("log")
    axes.set_xlabel("patterns")
    axes.set_ylabel("speed-up of an evaluation")
    axes.legend(fontsize=7)
    return figure


def _figure_8(found: Mapping[str, Any]) -> Figure:
    figure, axes = _axes()
    for (name, rows), colour, mark in zip(found["figure 8"].items(), COLOURS, MARKS, strict=False):
        x = [row["processors"] for row in rows]
        axes.plot(x, [row["LAM"] for row in rows], color=colour, marker=mark, label=name)
        axes.plot(x, [row["Cotswold's choice"] for row in rows], color=colour, linestyle=":")
    axes.plot([], [], color=INK, linestyle=":", label="with the reduction that Cotswold chooses")
    axes.set_xlabel("processors of Bunyip")
    axes.set_ylabel("GFLOP/s, predicted")
    axes.legend(fontsize=7)
    return figure
