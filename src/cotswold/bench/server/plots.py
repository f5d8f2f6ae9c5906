"""Figures of the result of `bench server`: fractions of limits, replicas per server, recorded traffic by
number of servers, cost of replication.

Knows: matplotlib, the style of the figures of kernels. Does not know: the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cotswold.bench.kernels.plots import BLUE, INK, STYLE, WIDE_INCHES, save
from cotswold.bench.measure import Document
from cotswold.bench.row import COTSWOLD
from cotswold.bench.server.copies import BAR, BAR_COPIES, CPU_OF_NONE, CPU_OF_ONE, ONE_COPY_BASELINE
from cotswold.bench.server.links import BARS, PULLS, PUSHES
from cotswold.bench.server.processes import REQUESTED_RATE

_ROW_INCHES = 0.22
_ORANGE = "#d9822b"
_OPERATIONS = ("push", "pull")
_SHARES = ("apply", "factors", *_OPERATIONS)


def draw(server: Document, file: Path) -> bool:
    """Draw a bar for each operation with its quartiles, and a line at its bar; each group with its most
    threads.

    The file's suffix decides the format (.svg, .png). Returns False if none of it was measured.
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
        words = "fraction of the limit in brackets" + ("; orange: of y += x" if others else "")
        axis.set_xlabel(words, loc="right")
        save(figure, file)
    return True


def _label(row: Any, limit: str) -> str:
    if row["group"] in _OPERATIONS:
        return f"{row['group']}, {row['shape']} ({limit})"
    threads = "" if row["threads"] == 1 else f", {row['threads']} threads"
    return f"{row['shape']}: {row['operation']}{threads} ({limit})"


def draw_replicas(server: Document, file: Path) -> bool:
    """Draw steps served per second by number of replicas, with the requested rate and the server's load.

    Returns False if it was not measured.
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
        asked = [row["figures"][REQUESTED_RATE]["median"] for row in rows]
        served = [row["figures"][COTSWOLD]["median"] for row in rows]
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
    """Draw weight updates per second by number of servers (Chilimbi et al. 2014, figure 9).

    Returns False if none was measured.
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
                    [row["figures"][COTSWOLD]["median"] for row in some],
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
        axis.set_ylabel("10⁹ weight updates per second")
        axis.set_title(
            f"Recorded traffic of {rows[0]['shape']}, {rows[0]['facts']['sessions']} replicas", fontsize=10
        )
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, file)
    return True


def draw_copies(server: Document, file: Path) -> bool:
    """Draw a push's cost for servers by number of copies, and the waits of pushes after a fault.

    Returns False if no copies were measured.
    """
    every: Any = server["rows"]
    rows = [row for row in every if row["group"] == "copies"]
    waits = [row for row in every if row["group"] == "failover"]
    if not rows:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES, 3.6), layout="constrained")
        costs, seconds = figure.subplots(1, 2, width_ratios=(3, 2)) if waits else (figure.subplots(), None)
        costs.patch.set_alpha(0)
        for shape, colour in zip(dict.fromkeys(row["shape"] for row in rows), (BLUE, _ORANGE), strict=False):
            own = [row for row in rows if row["shape"] == shape]
            for against, style in ((CPU_OF_ONE, "-"), (CPU_OF_NONE, ":")):
                ratios = [_ratio(row, against) for row in own]
                costs.errorbar(
                    [row["facts"]["copies"] for row in own],
                    [each["median"] for each in ratios],
                    [
                        [each["median"] - each["lower"] for each in ratios],
                        [each["upper"] - each["median"] for each in ratios],
                    ],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=f"{shape.rpartition(', ')[2]}, vs. {against.partition(':')[0]}",
                )
        costs.plot([BAR_COPIES], [BAR], color=INK, marker="_", markersize=18, linestyle="", label="bar")
        costs.set_xticks(sorted({row["facts"]["copies"] for row in rows}))
        costs.set_ylim(0)
        costs.set_xlabel("copies")
        costs.set_ylabel("processor time of all servers per push, ratio")
        if seconds is not None:
            seconds.patch.set_alpha(0)
            for place, row in enumerate(waits):
                samples = row["seconds"][COTSWOLD]
                seconds.plot([place] * len(samples), samples, "o", color=BLUE, markersize=4, alpha=0.7)
                bar = row["facts"]["bar_seconds"]
                seconds.plot([place], [bar], color=INK, marker="_", markersize=18, linestyle="")
            seconds.set_xticks(range(len(waits)), [row["shape"] for row in waits])
            seconds.set_xlim(-0.6, len(waits) - 0.4)
            seconds.set_ylim(0)
            seconds.set_ylabel("s until pushes count again")
        figure.legend(loc="outside lower center", ncols=3)
        save(figure, file)
    return True


def draw_links(server: Document, file: Path) -> bool:
    """Draw the rates of pushes and pulls on slow links relative to one copy, by number of copies.

    Returns False if none were measured.
    """
    every: Any = server["rows"]
    rows = [row for row in every if row["group"] == "links" and row["verdicts"]]
    if not rows:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDE_INCHES * 0.75, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.patch.set_alpha(0)
        for way, colour in (("star", BLUE), ("chain", _ORANGE)):
            for verb, style in ((PUSHES, "-"), (PULLS, ":")):
                own = [row for row in rows if row["facts"]["verb"] == verb]
                own = [row for row in own if row["facts"]["copies"] == 1 or row["facts"]["way"] == way]
                axis.plot(
                    [row["facts"]["copies"] for row in own],
                    [_ratio(row, ONE_COPY_BASELINE)["median"] for row in own],
                    color=colour,
                    linestyle=style,
                    marker="o",
                    markersize=4,
                    label=f"{verb}, {way}",
                )
        axis.plot([BAR_COPIES] * len(BARS), [*BARS.values()], "_", color=INK, markersize=18, label="bars")
        axis.set_xticks(sorted({row["facts"]["copies"] for row in rows}))
        axis.set_ylim(0)
        axis.set_xlabel("copies")
        axis.set_ylabel("rate relative to one copy")
        axis.set_title(f"{rows[0]['shape']}, {rows[0]['facts']['clients']} clients", fontsize=10)
        figure.legend(loc="outside lower center", ncols=3)
        save(figure, file)
    return True


def _ratio(row: Any, against: str) -> Any:
    return next(one["ratio"] for one in row["verdicts"] if one["against"] == against)


PLOTS: dict[str, Callable[[Document, Path], bool]] = {
    "server.svg": draw,
    "server-replicas.svg": draw_replicas,
    "server-trace.svg": draw_trace,
    "server-copies.svg": draw_copies,
    "server-links.svg": draw_links,
}
"""The figures of a result, by file name."""
