"""Chilimbi et al. 2014, section 3.1: how trainers are fed, and ours beside.

Knows: what the paper states in words, what `data-servers.json` has. Does not know: how anybody is fed, pages.
"""

from __future__ import annotations

from cotswold.analysis.report.blocks import Table, row
from lib.papers.part import Claim, Found, Part, Result

_OURS = "data servers"
_HEAD = ["", "Samples\na second", "A core\nsecond", "Memory,\nMiB", "Waited\nat 1/1.2"]


def feeding(found: Result) -> Found:
    """Data servers beside other feeders, their cache, and servers that are killed."""
    told = found["summary"]
    rows = [
        row(
            f"{each['subject']}: {each['who']}",
            *(f"{each[name]['median']:,.0f}" for name in ("samples_a_second", "samples_a_core_second")),
            f"{each['memory_mib']['median']:,.0f}",
            "" if each["waited_at_1_2"] is None else f"{100 * each['waited_at_1_2']['median']:.1f} %",
        )
        for each in told["rows"]
    ]
    if not rows:
        return Found()
    ours = [each for each in told["rows"] if each["who"] == _OURS]
    waits = [
        f"{each['subject']} {100 * each['waited_at_1_2']['median']:.1f} %"
        for each in ours
        if each["waited_at_1_2"] is not None
    ]
    rates = [f"{each['subject']} {each['samples_a_core_second']['median']:,.0f}" for each in ours]
    claims = [
        Claim("a small set of machines feeds all trainers", f"samples a core second: {', '.join(rates)}"),
        Claim(
            "images are asked for in advance, so that trainers do not wait",
            f"waiting, where the pool could hand out 1.2 times as much: {', '.join(waits) or 'not measured'}",
        ),
        *_cached(told["cache"]),
        *_killed(told["killed"]),
    ]
    note = (
        "The transforms alone are the same batches made in the trainer's own process, which waits for them."
    )
    return Found(claims, tables=[Table(_HEAD, rows)], note=note)


def _cached(rows: list[Result]) -> list[Claim]:
    hits = [
        f"{each['subject']} a hit takes {each['hit_of_copy']:.1f} times a copy, and the cache "
        f"{100 * each['of_bound']:.0f} % of its bound"
        for each in rows
    ]
    return [Claim("data servers cache images in memory", "; ".join(hits))] if hits else []


def _killed(rows: list[Result]) -> list[Claim]:
    quiet = {each["subject"]: each for each in rows if each["killed_every"] == "0"}
    return [
        Claim(
            "nothing is said of data servers that fail",
            f"{each['subject']}: {_kept(each, quiet[each['subject']]):.2f} of the rate with {each['killed']} "
            f"kills, one every {each['killed_every']} s; of {each['samples']:,} samples {each['twice']} came "
            f"twice and {each['lost']} not at all",
        )
        for each in rows
        if each["killed_every"] != "0" and each["subject"] in quiet
    ]


def _kept(killed: Result, quiet: Result) -> float:
    kept: float = killed["samples_a_second"] / quiet["samples_a_second"]
    return kept


PARTS = (
    Part(
        "Section 3.1, servers",
        "data servers",
        "measured",
        "Processes apart from the trainer read, transform and hand out images, beside other feeders "
        "with the same transforms, and TensorFlow's with its own.",
        "Data servers apart from the training machines transform and cache images, which are asked for in "
        "advance.",
        ("data-servers",),
        feeding,
    ),
)
