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
    """A bar for each operation with its quartiles, a line at the bar; on the greatest number of threads.

    The kind of picture follows from the name of the file (.svg, .png). False where nothing was measured.
    """
    every: Any = server["rows"]
    threads = max((row["threads"] for row in every), default=0)
    rows = [row for row in every if row["threads"] == threads]
    lines = [
        (row, one)
        for row in rows
        for one in row["verdicts"]
        if one["bar"] is not None and row["group"] in _SHARES
    ][::-1]
    if not lines:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES, 1.2 + _ROW_INCHES * len(lines)), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        medians = [one["ratio"]["median"] for _, one in lines]
        errors = [
            [one["ratio"]["median"] - one["ratio"]["lower"] for _, one in lines],
            [one["ratio"]["upper"] - one["ratio"]["median"] for _, one in lines],
        ]
        axis.barh(range(len(lines)), medians, xerr=errors, color=BLUE, ecolor=INK, height=0.7)
        for bar in sorted({one["bar"] for _, one in lines}):
            axis.axvline(bar, color=INK, linewidth=1.2, linestyle="--")
        labels = [
            f"{row['group']}, {row['shape']}"
            if row["group"] in _ROADS
            else f"{row['shape']}: {row['operation']} ({one['against']})"
            for row, one in lines
        ]
        axis.set_yticks(range(len(lines)), labels)
        word = "thread" if threads == 1 else "threads"
        axis.set_xlabel(f"share of the limit (in brackets, raw frames or memcpy), {threads} {word}")
        save(figure, file)
    return True


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
