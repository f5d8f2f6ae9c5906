"""Ranks compared with one process, exchanges compared with raw messages, links of several rates.

Knows: the command's options, its table, where results go. Does not know: how anything is measured.
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
    """Measure two ranks against one process, exchanges against raw messages, and the hiding of messages.

    Every rank computes on one thread. Ranks on separate hosts are processes in network namespaces, with links
    of 1 Gb/s, 10 Gb/s and unshaped. They need root and the programs ip and tc; without these, the groups are
    left out with a notice. Each row shows its bar and whether it is met. Takes half an hour; the file has the
    results so far. Examples:

      python benchmarks/scaling.py --quick

      python benchmarks/scaling.py --out benchmarks/results

      python benchmarks/scaling.py --only weak --only strong --match "20 x 20 x 8"

    Parameters
    ----------
    only
        Group to measure: weak, strong, alone, exchange, hidden, hosts; may be given again.
    match
        Measure only cases with this text in their name.
    quick
        Use small maps and few rounds, to try the command.
    out
        Directory for scaling.json (every sample), scaling.svg and
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
        table("medians; ratios are computed round by round", lines, sections="group")
    barred = [verdict for row in every for verdict in row["verdicts"] if verdict["met"] is not None]
    met = sum(verdict["met"] for verdict in barred)
    print(f"{met} of {len(barred)} bars met, in {found['whole_seconds']} s")
    left_out: Any = found["left_out"]
    for group, why in left_out.items():
        print(f"{group} was left out: {why}")
    for note in dict.fromkeys(f"{row['operation']}: {row['note']}" for row in every if row["note"]):
        print(note)


def _line(row: Any, verdict: Any) -> Document:
    """Return a line of the table: Cotswold's figure, its reference, the ratio with quartiles, and the bar."""

    figures, ratio = row["figures"], verdict["ratio"]
    theirs = figures.get(verdict["against"])
    bar = "" if verdict["bar"] is None else f"{verdict['sense']} {verdict['bar']:g}"
    return {
        "group": row["group"],
        "shape": row["shape"],
        "operation": row["operation"],
        "ours": f"{_figure(figures[COTSWOLD]['median'])} {row['unit']}",
        "reference": f"{verdict['against']} {_figure(theirs['median'])}" if theirs else verdict["against"],
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
