"""Plots of a training with faults: samples per second with each fault named, and a small summary.

Knows: matplotlib, the result of a training. Does not know: how anything was measured.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from cotswold.bench.kernels.plots import STYLE
from cotswold.bench.measure import Document

_WINDOW_SECONDS = 4.0
_COLOURS = {
    "kill": "#c53030",
    "stop": "#b7791f",
    "cut": "#553c9a",
    "deafen": "#805ad5",
    "mute": "#b794f4",
    "fill": "#2f855a",
    "slow": "#718096",
}
_WORDS = {
    "kill": "process killed",
    "stop": "process stopped",
    "cut": "host cut off",
    "deafen": "host hears nothing",
    "mute": "host not heard",
    "fill": "disk full",
    "slow": "slow network",
}
"""Labels of the kinds of faults."""


def drawing(found: Document) -> str:
    """Return a panel for each training with faults, over the training without faults of the same round."""
    trainings: Any = found["trainings"]
    machine: Any = found["machine"]
    disturbed = [each for each in trainings if each["is_fire"]]
    quiet = [each for each in trainings if not each["is_fire"]]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "fault-training", "font.size": 8}):
        canvas = Canvas(figsize=(9.0, 0.6 + 3.4 * max(1, len(disturbed))), layout="constrained")
        canvas.patch.set_alpha(0)
        for place, one in enumerate(disturbed):
            axes = canvas.add_subplot(len(disturbed), 1, place + 1)
            axes.patch.set_alpha(0)
            if place < len(quiet):
                _line(axes, quiet[place]["series"], "#a0aec0", "undisturbed")
            _line(axes, one["series"], "#2b6cb0", "with faults")
            _faults(axes, one["faults"])
            axes.set_xlabel("seconds")
            axes.set_ylabel("samples per second")
            axes.set_ylim(bottom=0)
            axes.legend(loc="lower right", frameon=False)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        canvas.suptitle(
            f"adam-mnist on {found['hosts']} hosts in namespaces, three copies, on {machine['cores']} cores "
            f"of {machine['processor']}",
            fontsize=9,
            color=STYLE["text.color"],
        )
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def summary(found: Document) -> str:
    """Return the samples over time of the first pair of trainings, and marks for each kind of fault."""
    trainings: Any = found["trainings"]
    disturbed = next(each for each in trainings if each["is_fire"])
    quiet = next(each for each in trainings if not each["is_fire"])
    kinds = [kind for kind in _COLOURS if any(each["kind"] == kind for each in disturbed["faults"])]
    with mpl.rc_context({**STYLE, "svg.hashsalt": "fault-training-summary", "font.size": 9}):
        canvas = Canvas(figsize=(7.4, 3.3), layout="constrained")
        canvas.patch.set_alpha(0)
        marks, samples = canvas.subplots(2, 1, sharex=True, height_ratios=(1.2, 2.2))
        for row, kind in enumerate(kinds):
            at = [each["at"] for each in disturbed["faults"] if each["kind"] == kind]
            marks.plot(at, [row] * len(at), "o", ms=4, color=_COLOURS[kind])
        marks.set_yticks(range(len(kinds)), [_WORDS[kind] for kind in kinds], fontsize=8)
        marks.set_ylim(len(kinds) - 0.5, -0.5)
        marks.tick_params(length=0)
        for one, colour, label in (
            (disturbed, "#3182ce", f"{len(disturbed['faults'])} faults"),
            (quiet, "#a0aec0", "no fault"),
        ):
            counts = [(when, count) for when, count in one["series"] if when >= 0]
            samples.plot(
                [when for when, _ in counts], [count for _, count in counts], color=colour, label=label
            )
        samples.set_ylim(bottom=0)
        samples.set_xlabel("seconds")
        samples.set_ylabel("samples learned")
        samples.yaxis.set_major_formatter("{x:,.0f}")
        samples.legend(loc="upper left", frameon=False)
        for axes in (marks, samples):
            axes.patch.set_alpha(0)
            axes.spines[["top", "right"]].set_visible(False)
        marks.spines[["left", "bottom"]].set_visible(False)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def rates(series: Sequence[Sequence[float]], window: float = _WINDOW_SECONDS) -> list[tuple[float, float]]:
    """Return samples per second over the last ``window`` seconds, at each observation."""
    found, first = [], 0
    for when, count in series:
        while series[first][0] < when - window:
            first += 1
        began, before = series[first]
        if when > began:
            found.append((when, (count - before) / (when - began)))
    return found


def _line(axes: Axes, series: Sequence[Sequence[float]], colour: str, label: str) -> None:
    points = rates(series)
    axes.plot([when for when, _ in points], [rate for _, rate in points], color=colour, lw=1, label=label)


def _faults(axes: Axes, faults: Sequence[Any]) -> None:
    for fault in faults:
        colour = _COLOURS[fault["kind"]]
        axes.axvspan(fault["at"], fault["at"] + fault["healed_after"], color=colour, alpha=0.18, lw=0)
        axes.annotate(
            f"{fault['kind']} {fault['role']} {fault['host']}",
            (fault["at"], 1.0),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            ha="right",
            fontsize=6,
            color=colour,
        )
