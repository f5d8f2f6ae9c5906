"""Ranks beside one process, exchanges beside raw messages, links of several rates.

Knows: the words of the command, its table, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotswold.bench.case import select_cases
from cotswold.bench.measure import Document
from cotswold.bench.row import COTSWOLD
from cotswold.cli.support.tables import create_result_folder, table, write, write_result
from cotswold.ui.terminal import write_message
from lib.command import Flag, Json, Only, command, main
from lib.scaling.cases import GROUPS, cases, quick_cases
from lib.scaling.cases import scaling as measured
from lib.scaling.plots import PLOTS


def scaling(
    *,
    only: Only = None,
    match: str = "",
    quick: Flag = False,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Two ranks beside one process, exchanges beside raw messages, messages hidden.

    Every rank computes on one thread. Ranks on hosts of their own are processes in
    network namespaces, joined by links of 1 Gb/s, 10 Gb/s and unshaped; that needs
    root and the programs ip and tc, and is left out with a word where they are not
    to be had. Each row has its bar, and says whether it is met. Half an hour; what
    is measured so far is in the file. Examples:

      python benchmarks/scaling.py --quick

      python benchmarks/scaling.py --out benchmarks/results

      python benchmarks/scaling.py --only weak --only strong --match "20 x 20 x 8"

    Parameters
    ----------
    only
        A group: weak, strong, alone, exchange, hidden, hosts; may be given again.
    match
        Only what has this text in its name.
    quick
        Little maps, few rounds: to try the command, not to quote.
    out
        A directory for scaling.json (every sample), scaling.svg and
        scaling-messages.svg.
    json_
        Print JSON.
    """

    create_result_folder(out)
    chosen = select_cases(quick_cases() if quick else cases(), only or [], match, GROUPS)
    found = measured(chosen, quick, command(), write_message, lambda so_far: write(so_far, "scaling", out))
    write_result(found, "scaling", out, json_)
    if out is not None:
        for name, draw in PLOTS.items():
            draw(found, out / name)
    if not json_:
        _print(found)


def _print(found: Document) -> None:
    every: Any = found["rows"]
    lines = [_line(row, verdict) for row in every for verdict in row["verdicts"]]
    if lines:
        table("medians; ratios are taken round by round", lines, sections="group")
    barred = [verdict for row in every for verdict in row["verdicts"] if verdict["met"] is not None]
    met = sum(verdict["met"] for verdict in barred)
    print(f"{met} of {len(barred)} bars met, in {found['whole_seconds']} s")
    left_out: Any = found["left_out"]
    for group, why in left_out.items():
        print(f"{group} was left out: {why}")
    for note in dict.fromkeys(f"{row['operation']}: {row['note']}" for row in every if row["note"]):
        print(note)


def _line(row: Any, verdict: Any) -> Document:
    """A line of the table: ours, what stands beside it, the ratio with its quartiles, and the bar."""

    figures, ratio = row["figures"], verdict["ratio"]
    theirs = figures.get(verdict["against"])
    bar = "" if verdict["bar"] is None else f"{verdict['sense']} {verdict['bar']:g}"
    return {
        "group": row["group"],
        "shape": row["shape"],
        "operation": row["operation"],
        "ours": f"{_figure(figures[COTSWOLD]['median'])} {row['unit']}",
        "beside": f"{verdict['against']} {_figure(theirs['median'])}" if theirs else verdict["against"],
        "ratio": _with_quartiles(ratio),
        "bar": bar,
        "": {True: "met", False: "missed", None: ""}[verdict["met"]],
    }


def _with_quartiles(ratio: Any) -> str:
    median, lower, upper = (_figure(ratio[name]) for name in ("median", "lower", "upper"))
    return median if lower == upper else f"{median} ({lower} to {upper})"


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main(scaling)
