"""Pictures of what replicas do: accuracy against their number, against time, speed against cores.

Knows: matplotlib. Does not know: how anything was measured or simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from measures.predictions.pictures import COLOURS, INK, KEPT, MARKS, STYLE

NAMES = {"sgd": "SGD, fixed rate", "momentum": "momentum 0.9", "adagrad": "Adagrad"}


def draw_staleness(found: Mapping[str, Any], recipe: str, folder: Path) -> None:
    """staleness.svg: accuracy against the number of simulated replicas, each rule at its best rate."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "staleness"}):
        figure, axes = _axes()
        for (rule, name), colour, mark in zip(NAMES.items(), COLOURS, MARKS, strict=False):
            own = sorted(
                (row for row in found["rows"] if row["rule"] == rule), key=lambda row: row["replicas"]
            )
            if own:
                x = [row["replicas"] for row in own]
                axes.plot(x, [100 * row["test"] for row in own], color=colour, marker=mark, label=name)
        axes.set_xscale("log")
        axes.set_xlabel("replicas, simulated")
        axes.set_ylabel(f"{recipe}: % of test samples")
        _save(figure, axes, folder / "staleness.svg")


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(color=INK, alpha=0.2)
    return figure, axes


def _save(figure: Figure, axes: Axes | Sequence[Axes], path: Path) -> None:
    for each in [axes] if isinstance(axes, Axes) else axes:
        if each.get_legend_handles_labels()[0]:
            each.legend(fontsize=7)
    figure.savefig(path, **KEPT)
