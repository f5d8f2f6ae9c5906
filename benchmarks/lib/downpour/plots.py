"""Plots of replicas: accuracy by number of replicas, accuracy by time, speed by cores.

Knows: matplotlib. Does not know: how anything was measured or simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.predictions.plots import COLOURS, INK, KEPT, MARKS, STYLE

NAMES = {"sgd": "SGD, fixed rate", "momentum": "momentum 0.9", "adagrad": "Adagrad"}


def draw_staleness(found: Mapping[str, Any], recipe: str, folder: Path) -> None:
    """Write staleness.svg: accuracy by number of simulated replicas, each rule at its best rate."""
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


def draw_figure_4(found: Mapping[str, Any], folder: Path) -> None:
    """Write downpour-vs-sandblaster.svg: accuracy by seconds and processor time; time to an accuracy by
    cores, measured and simulated."""
    told = found["summary"]
    if not told["rows"]:
        return
    with mpl.rc_context({**STYLE, "svg.hashsalt": "downpour-vs-sandblaster"}):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        time, processors, cores = figure.subplots(1, 3)
        ways = dict.fromkeys(row["way"] for row in told["rows"])
        for way, colour, mark in zip(ways, COLOURS, MARKS, strict=False):
            cell = found["cells"][f"{way}; 0"]
            for axes, x in ((time, cell["seconds"]), (processors, cell["cpu_seconds"])):
                for split, line in (("held-out", "-"), ("train", ":")):
                    y = [100 * one for one in cell["accuracy"][split]]
                    label = way if split == "held-out" else None
                    axes.plot(x, y, color=colour, linestyle=line, label=label)
            own = [row for row in told["rows"] if row["way"] == way]
            x, y = [row["cores"] for row in own], [row["seconds"] for row in own]
            cores.plot(x, y, color=colour, marker=mark, linestyle="")
        for way, colour in zip(
            dict.fromkeys(row["way"] for row in told["simulated"]), COLOURS[1:], strict=False
        ):
            own = [row for row in told["simulated"] if row["way"] == way and row["seconds"] is not None]
            x, y = [row["replicas"] for row in own], [row["seconds"] for row in own]
            cores.plot(x, y, color=colour, linestyle="--", label=f"{way}: simulated")
        time.set(xlabel="seconds", ylabel="% of frames; dotted: of training frames")
        processors.set(xlabel="seconds of processor time, all processes")
        cores.set(
            xlabel="cores", ylabel=f"seconds to {told['accuracy']:.1%} held-out", xscale="log", yscale="log"
        )
        for axes in (time, processors, cores):
            axes.grid(color=INK, alpha=0.2)
        _save(figure, [time, cores], folder / "downpour-vs-sandblaster.svg")


def draw_adam_figures(found: Mapping[str, Any], folder: Path) -> None:
    """Write adam-figures.svg: connections per second by cores, samples per second by replicas."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "adam-figures"}):
        figure = Figure(figsize=(8.3, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        name = "billion_connections_a_second"
        here = [row for row in found["figure 8"] if row["is"] == "measured"]
        left.plot(
            [row["cores"] for row in found["figure 8"]],
            [row[name] for row in found["figure 8"]],
            color=COLOURS[0],
            linestyle="--",
            label="proportional to cores",
        )
        left.plot(
            [row["cores"] for row in here],
            [row[name] for row in here],
            color=COLOURS[0],
            marker="o",
            label="measured",
        )
        left.set(xlabel="cores: processes on one copy", ylabel="billion connections per second")
        lines = [
            ("measured", "measured, server on the same cores", COLOURS[0], "-"),
            ("simulated", "simulated: one core each, one host", COLOURS[1], "--"),
            ("simulated_10_gigabit", "simulated: 10 Gbit/s to the server", COLOURS[2], "--"),
        ]
        for key, label, colour, line in lines:
            own = [row for row in found["figure 11"] if row[key] is not None]
            x, y = [row["replicas"] for row in own], [row[key] for row in own]
            mark = "o" if line == "-" else ""
            right.plot(x, y, color=colour, linestyle=line, marker=mark, label=label)
        right.set(xlabel="replicas", ylabel="samples per second")
        for axes in (left, right):
            axes.set(xscale="log", yscale="log")
            axes.grid(color=INK, alpha=0.2)
        _save(figure, [left, right], folder / "adam-figures.svg")


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
