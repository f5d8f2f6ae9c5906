"""The result of `bench server` as pictures: which share of its limit every operation reaches, how many
replicas a server serves, recorded traffic against the number of servers.

Knows: matplotlib, the style of the pictures of kernels. Does not know: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.kernels.picture import BLUE, INK, STYLE, WIDE_INCHES, save
from cotswold.bench.measure import Document
from cotswold.bench.row import OURS
from cotswold.bench.server.crowd import ASKED

_ROW_INCHES = 0.22
_ORANGE = "#d9822b"
_ROADS = ("push", "pull")
_SHARES = ("apply", "factors", *_ROADS)


def draw(server: Document, file: Path) -> bool:
    """A bar for each operation with its quartiles, a line at the bar; each group on its most threads.

    The kind of picture follows from the name of the file (.svg, .png). False where nothing was measured.
    """
    every: Any = server["rows"]
    most = {
        group: max((row["threads"] for row in every if row["group"] == group), default=0) for group in _SHARES
    }
    judged = [
        (row, [one for one in row["verdicts"] if one["bar"] is not None])
        for row in every
        if row["threads"] == most.get(row["group"])
    ]
    lines = [(row, verdicts) for row, verdicts in judged if verdicts][::-1]
    if not lines:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES, 1.2 + _ROW_INCHES * len(lines)), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        places, nearest = range(len(lines)), [verdicts[-1] for _, verdicts in lines]
        medians = [one["ratio"]["median"] for one in nearest]
        errors = [
            [one["ratio"]["median"] - one["ratio"]["lower"] for one in nearest],
            [one["ratio"]["upper"] - one["ratio"]["median"] for one in nearest],
        ]
        axis.barh(places, medians, xerr=errors, color=BLUE, ecolor=INK, height=0.7)
        others = [
            (one["ratio"]["median"], place)
            for place, (_, verdicts) in enumerate(lines)
            for one in verdicts[:-1]
        ]
        if others:
            shares, heights = zip(*others, strict=True)
            axis.scatter(shares, heights, color=_ORANGE, marker="|", s=60, zorder=3)
        for bar in sorted({one["bar"] for one in nearest}):
            axis.axvline(bar, color=INK, linewidth=1.2, linestyle="--")
        axis.set_yticks(places, [_label(row, verdicts[-1]["against"]) for row, verdicts in lines])
        axis.set_ylim(-0.6, len(lines) - 0.4)
        words = "share of the limit in brackets" + ("; orange: of y += x" if others else "")
        axis.set_xlabel(words, loc="right")
        save(figure, file)
    return True


def _label(row: Any, limit: str) -> str:
    if row["group"] in _ROADS:
        return f"{row['group']}, {row['shape']} ({limit})"
    threads = "" if row["threads"] == 1 else f", {row['threads']} threads"
    return f"{row['shape']}: {row['operation']}{threads} ({limit})"


def draw_replicas(server: Document, file: Path) -> bool:
    """Steps a second served against the number of replicas, beside those asked for, and the server's load.

    False where it was not measured.
    """
    every: Any = server["rows"]
    rows = [row for row in every if row["group"] == "replicas"]
    if not rows:
        return False
    counts = [row["facts"]["replicas"] for row in rows]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES * 0.75, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        asked = [row["figures"][ASKED]["median"] for row in rows]
        served = [row["figures"][OURS]["median"] for row in rows]
        axis.plot(counts, asked, color=INK, linestyle="--", label="asked for")
        axis.plot(
            counts, served, color=BLUE, marker="o", markersize=4, label="served: pushed, applied, pulled"
        )
        axis.set_ylim(0)
        axis.set_xlabel("replicas that push and pull after every step")
        axis.set_ylabel("steps/s")
        beside = axis.twinx()
        shares = [row["facts"]["server_cpu_share"] for row in rows]
        beside.plot(
            counts, shares, color=_ORANGE, marker="s", markersize=3, label="processor time of the server"
        )
        beside.set_ylim(0, 2)
        beside.set_ylabel("cores")
        step, shape = rows[0]["facts"]["step_seconds"], rows[0]["shape"]
        axis.set_title(
            f"One server process, {shape}, {rows[0]['facts']['parameters']:,} parameters, "
            f"steps of {1e3 * step:.3g} ms",
            fontsize=10,
        )
        figure.legend(loc="outside lower center", ncols=3)
        save(figure, file)
    return True


def draw_trace(server: Document, file: Path) -> bool:
    """Updates of weights a second against the number of servers (Chilimbi et al. 2014, figure 9).

    False where none was measured.
    """
    every: Any = server["rows"]
    rows = [row for row in every if row["group"] == "trace" and row["facts"]["speed"] != "recorded"]
    if not rows:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES * 0.75, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        for form, label, colour in (
            ("whole", "deltas or gradients, M·N", BLUE),
            ("factors", "factors, k·M·N", _ORANGE),
        ):
            own = [row for row in rows if row["facts"]["form"] == form]
            for simulated, style in ((False, "-"), (True, ":")):
                some = [row for row in own if row["facts"]["is_simulated"] is simulated]
                axis.plot(
                    [row["facts"]["servers"] for row in some],
                    [row["figures"][OURS]["median"] for row in some],
                    color=colour,
                    linestyle=style,
                    marker="s" if simulated else "o",
                    markerfacecolor="none" if simulated else colour,
                    label=f"{label}{', simulated from one' if simulated else ''}",
                )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        counts = sorted({row["facts"]["servers"] for row in rows})
        axis.set_xticks(counts, [str(one) for one in counts])
        axis.set_xlabel("server processes, a core each; traffic as fast as can be")
        axis.set_ylabel("10⁹ updates of weights a second")
        axis.set_title(
            f"Recorded traffic of {rows[0]['shape']}, {rows[0]['facts']['sessions']} replicas", fontsize=10
        )
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, file)
    return True


PICTURES: dict[str, Callable[[Document, Path], bool]] = {
    "server.svg": draw,
    "server-replicas.svg": draw_replicas,
    "server-trace.svg": draw_trace,
}
"""The pictures of a result by the names of their files."""
