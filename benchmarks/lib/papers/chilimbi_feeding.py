"""Section 3.1 of Chilimbi et al. 2014: data servers, compared with Cotswold's results.

Knows: the paper's statements, the contents of `data-servers.json`. Does not know: how batches are delivered,
pages.
"""

from __future__ import annotations

from cotswold.analysis.report.blocks import Table, row
from lib.papers.part import Claim, Found, Part, Result

_OURS = "data servers"
_HEAD = ["", "Samples\nper second", "per core\nsecond", "Memory,\nMiB", "Waiting\nat 1/1.2"]


def feeding(found: Result) -> Found:
    """Return data servers compared with other loaders, their cache, and the effect of kills."""
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
        Claim("a small set of machines feeds all trainers", f"samples per core second: {', '.join(rates)}"),
        Claim(
            "images are requested in advance, so that trainers do not wait",
            f"waiting time at 1.2 times the trainer's rate: {', '.join(waits) or 'not measured'}",
        ),
        *_cached(told["cache"]),
        *_killed(told["killed"]),
    ]
    note = "Transforms alone: the same batches made in the trainer's process, which waits for them."
    return Found(claims, tables=[Table(_HEAD, rows)], note=note)


def _cached(rows: list[Result]) -> list[Claim]:
    hits = [
        f"{each['subject']} a hit takes {each['hit_of_copy']:.1f} times as long as a copy, and the cache "
        f"{100 * each['of_bound']:.0f} % of its bound"
        for each in rows
    ]
    return [Claim("data servers cache images in memory", "; ".join(hits))] if hits else []


def _killed(rows: list[Result]) -> list[Claim]:
    quiet = {each["subject"]: each for each in rows if each["killed_every"] == "0"}
    return [
        Claim(
            "failures of data servers are not described",
            f"{each['subject']}: {_kept(each, quiet[each['subject']]):.2f} of the rate with {each['killed']} "
            f"kills, one every {each['killed_every']} s; of {each['samples']:,} samples {each['twice']} were "
            f"duplicated and {each['lost']} lost",
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
        "Separate processes read, transform and deliver images; compared with other loaders "
        "with the same transforms, and TensorFlow with its own.",
        "Data servers on separate machines transform and cache images, which are requested in advance.",
        ("data-servers",),
        feeding,
    ),
)
