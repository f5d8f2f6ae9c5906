"""The cases that `bench scaling` measures, in groups.

Knows: which stacks each measurement uses, the fields of a result. Does not know: how a case is measured, the
command line, plots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from cotswold.bench.case import Case
from cotswold.bench.effort import Effort
from cotswold.bench.measure import Document, Rounds, document, rounded
from cotswold.testing.hosts import Rate, why_not
from lib.scaling.exchange import Windows, exchanges
from lib.scaling.overlap import Link, hidden, words
from lib.scaling.shapes import PAPER, QUICK, Fields
from lib.scaling.speed import Alone, Speed, alone, speed
from lib.scaling.wire import LITTLE, SMALL, Spot, over_hosts

Say = Callable[[str], None]
Leave = Callable[[Document], None]

GROUPS = ("weak", "strong", "alone", "exchange", "hidden", "hosts")
NEED_HOSTS = ("hidden", "hosts")
"""Groups whose ranks run on separate hosts."""
GRIDS = ("1x2", "2x1")
"""Grids of two ranks; four ranks on two cores would not be a measurement."""
RATES: tuple[Rate | None, ...] = (None, "10gbit", "1gbit")
THREADS = (1, 2)
EFFORT = Effort(Rounds(max_rounds=9, min_rounds=5, seconds=60.0))
HIDDEN_EFFORT = Effort(Rounds(max_rounds=60, min_rounds=15, seconds=90.0))
"""Many rounds, for a small difference of long times."""
QUICK_EFFORT = Effort(Rounds(max_rounds=3, min_rounds=2, seconds=0.5))


def cases() -> list[Case[Any]]:
    """Return all cases, group by group."""
    return [
        *(_speed(kind, fields, grid) for kind in ("weak", "strong") for fields in PAPER for grid in GRIDS),
        *(_alone(fields, threads) for fields in PAPER for threads in THREADS),
        *(_windows(fields, grid) for fields in PAPER for grid in GRIDS),
        *(_link(fields, "1x2", rate) for fields in PAPER for rate in RATES),
        *(_link(fields, "2x1", "10gbit") for fields in PAPER),
        *(_spot(Spot(SMALL, 24, "2x2", hosts, rate)) for hosts in (2, 4) for rate in RATES),
    ]


def quick_cases() -> list[Case[Any]]:
    """Return one or two small cases of each group, to try the command."""
    return [
        _speed("weak", QUICK[0], "1x2"),
        _speed("strong", QUICK[1], "2x1"),
        _alone(QUICK[0], 1),
        _windows(QUICK[1], "1x2"),
        _link(QUICK[1], "1x2", "10gbit"),
        _spot(Spot(LITTLE, 4, "2x2", 2, "1gbit")),
    ]


def scaling(chosen: Sequence[Case[Any]], quick: bool, command: str, say: Say, leave: Leave) -> Document:
    """Run the chosen cases in order; call ``leave`` with the result so far after each case."""
    begun, rows = time.monotonic(), list[Document]()
    refused = why_not() if any(one.group in NEED_HOSTS for one in chosen) else None
    left_out: list[str] = []
    if refused is not None:
        left_out = list(dict.fromkeys(one.group for one in chosen if one.group in NEED_HOSTS))
        say(f"left out: {', '.join(left_out)}, because {refused}")
    possible = [one for one in chosen if one.group not in left_out]
    head = document("scaling", command, quick=quick, left_out=dict.fromkeys(left_out, refused))

    def so_far(complete: bool) -> Document:
        seconds = rounded(time.monotonic() - begun)
        return {**head, "complete": complete, "whole_seconds": seconds, "rows": rows}

    for number, case in enumerate(possible, 1):
        say(f"{number} of {len(possible)}: {case.group}, {case.name}")
        rows.extend(row.as_dict() for row in case.run(_effort(case.group, quick)))
        leave(so_far(number == len(possible)))
    return so_far(complete=True)


def _effort(group: str, quick: bool) -> Effort:
    if quick:
        return QUICK_EFFORT
    return HIDDEN_EFFORT if group == "hidden" else EFFORT


def _speed(kind: str, fields: Fields, grid: str) -> Case[Speed]:
    return Case(kind, f"{fields.name}, {grid}", speed, Speed(kind, fields, grid))


def _alone(fields: Fields, threads: int) -> Case[Alone]:
    subject = Alone(fields, threads)
    return Case("alone", subject.place, alone, subject)


def _windows(fields: Fields, grid: str) -> Case[Windows]:
    return Case("exchange", f"{fields.name}, {grid}", exchanges, Windows(fields, grid))


def _link(fields: Fields, grid: str, rate: Rate | None) -> Case[Link]:
    return Case("hidden", f"{fields.name}, {grid}, {words(rate)}", hidden, Link(fields, grid, rate))


def _spot(subject: Spot) -> Case[Spot]:
    name = f"{subject.grid} over {subject.hosts} hosts, {words(subject.rate)}"
    return Case("hosts", name, over_hosts, subject)
