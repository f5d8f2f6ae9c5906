"""Comparison of trainings with and without faults.

Knows: the results of trainings, the bars. Does not know: how anything was measured, tables, plots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from cotswold.bench.measure import Document, rounded

THROUGHPUT_BAR = 0.90
FAILOVER_BAR = 0.95
"""Least throughput, relative to training without faults, of a minute in which only one server is killed or
stopped."""
_ERRORS = 3.0
"""Multiple of the standard error up to which a difference counts as noise."""


def verdicts(quiet: Sequence[Any], disturbed: Sequence[Any], bar: float = THROUGHPUT_BAR) -> list[Document]:
    """Return a row for each audit.

    ``quiet`` and ``disturbed`` are trainings without and with faults; ``bar`` is the least relative
    throughput.
    """
    found = [_throughput(quiet, disturbed, bar), _accuracy(quiet, disturbed)] if quiet and disturbed else []
    for name in dict.fromkeys(each["audit"] for one in disturbed for each in one["audits"]):
        own = [each for one in disturbed for each in one["audits"] if each["audit"] == name]
        wrong = [each["found"] for each in own if not each["holds"]]
        found.append(_row(name, "; ".join(wrong or [own[0]["found"]]), "", not wrong))
    return found


def failovers(disturbed: Sequence[Any]) -> list[Document]:
    """Return for each kind of fault its number, the times of failovers, and the rate around it."""
    rows = []
    faults = [fault for one in disturbed for fault in one["faults"]]
    for kind, role in dict.fromkeys((each["kind"], each["role"]) for each in faults):
        own = [each for each in faults if (each["kind"], each["role"]) == (kind, role)]
        first = [each["first_took_over_s"] for each in own if each["took_over"]]
        last = [each["last_took_over_s"] for each in own if each["took_over"]]
        rows.append(
            {
                "fault": f"{kind} {role}",
                "times": len(own),
                "buckets_that_moved": sum(each["took_over"] for each in own),
                "first_s": rounded(mean(first)) if first else "-",
                "last_s": rounded(mean(last)) if last else "-",
                "samples_a_second": rounded(mean(each["samples_a_second"] for each in own)),
                "longest_pause_s": rounded(max(each["longest_pause_s"] for each in own)),
            }
        )
    return sorted(rows, key=lambda row: str(row["fault"]))


def _throughput(quiet: Sequence[Any], disturbed: Sequence[Any], bar: float) -> Document:
    before, during = (mean(one["samples_a_second"] for one in some) for some in (quiet, disturbed))
    part = during / before
    words = f"{during:,.0f} of {before:,.0f} samples per second: {part:.3f}"
    return _row("throughput with faults", words, f">= {bar:g}", part >= bar)


def _accuracy(quiet: Sequence[Any], disturbed: Sequence[Any]) -> Document:
    """Compare accuracies; noise combines the counting error and the variance between trainings."""
    apart = [mean(one["test"]["right"] for one in some) for some in (quiet, disturbed)]
    counting = sum(mean(one["test"]["error"] ** 2 for one in some) / len(some) for some in (quiet, disturbed))
    between = sum(
        _variance([one["test"]["right"] for one in some]) / len(some) for some in (quiet, disturbed)
    )
    error = math.sqrt(counting + between)
    difference = apart[1] - apart[0]
    words = f"{100 * apart[1]:.2f} % and {100 * apart[0]:.2f} % undisturbed: {100 * difference:+.2f}"
    bar = f"not less by {100 * _ERRORS * error:.2f}"
    return _row("accuracy on test images", words, bar, difference > -_ERRORS * error)


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)


def _row(name: str, found: str, bar: str, holds: bool) -> Document:
    return {"what": name, "found": found, "bar": bar, "holds": "yes" if holds else "NO"}
