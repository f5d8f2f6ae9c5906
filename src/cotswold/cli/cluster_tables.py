"""What is known of a cluster, in lines of text.

Knows: tables, words. Does not know: how a cluster is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotswold.api.operating import Explained, Overview
    from cotswold.cluster.messages import CopySeen, Reported
    from cotswold.server.messages import EventSeen, ServerSeen

_EVENTS = 8
_SHORT = 5
_NAMED = 3
"""So many servers that are no more are named."""


def lines_of(found: Overview) -> list[str]:
    """A cluster."""
    return list(_lines(found))


def _lines(found: Overview) -> Iterator[str]:
    looked = found.looked
    word = "copy" if looked.copies == 1 else "copies"
    copies = f"{looked.copies} {word} of each bucket, {looked.least} at least"
    yield f"{looked.controller} leads the controllers (epoch {looked.epoch}); {copies}"
    if refused := ", ".join(f"{count} {why}" for why, count in looked.refused if count):
        yield f"messages that it has refused: {refused}"
    yield ""
    idle = [each for each in looked.servers if each.state in ("ended", "gone") and not each.copies]
    shown = [each for each in looked.servers if each not in idle]
    if shown:
        rows = [_server(each, found.reports.get(each.name)) for each in shown]
        heads = (
            *("server", "host", "state", "heard", "leads", "copies", "lag", "not on disk", "window"),
            "refused",
        )
        yield from table(heads, rows)
    else:
        yield "no server is there" + ("" if idle else " yet")
    if ended := [each.name for each in idle if each.state == "ended"]:
        yield _idle(ended, "not there any more")
    if silent := [each.name for each in idle if each.state == "gone"]:
        yield _idle(silent, "silent")
    yield ""
    if looked.runs:
        rows = [
            (each.run, str(each.buckets), str(each.short or "-"), str(each.waiting or "-"))
            for each in looked.runs
        ]
        yield from table(("run", "buckets", "with too few copies", "whose pushes wait"), rows)
    else:
        yield "no run is here"
    for each in looked.short[:_SHORT]:
        yield f"{each.bucket}, term {each.term}: {', '.join(each.members)}; {each.why}"
    if looked.moving:
        yield f"{looked.moving} buckets are on their way"
    if looked.events:
        yield ""
        yield from _events(looked.events)


def _idle(names: Sequence[str], what: str) -> str:
    """Servers that are ``what``, and need not be there."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    are, have = ("is", "has no copy") if len(names) == 1 else ("are", "have no copies")
    return f"{', '.join(names[:_NAMED])}{more} {are} {what}, and {have}"


def _server(seen: ServerSeen, report: Reported | None) -> Sequence[str]:
    heard = "-" if seen.seconds < 0 else f"{seen.seconds:.1f} s ago"
    known = (seen.name, seen.host or "?", seen.state, heard, str(seen.leads), str(seen.copies))
    if report is None:
        return (*known, "?", "?", "?", "?")
    lag = max((behind for each in report.copies for _, behind in each.behind), default=0)
    refused = sum(count for _, count in report.refused)
    disk = ("no disk", "-")
    if report.has_disk:
        disk = (_bytes(report.dirty_bytes), f"{report.window_seconds:.1f} s")
    return (*known, str(lag), *disk, str(refused or "-"))


def explaining(found: Explained) -> list[str]:
    """One bucket."""
    lines = [f"{found.bucket}, term {found.term}" + (f", life {found.life}" if found.life else "")]
    members = (found.primary, *found.secondaries, *found.learners)
    rows = []
    for name in members:
        role = "primary" if name == found.primary else "learner" if name in found.learners else "secondary"
        seen, copy = found.servers.get(name), found.copies.get(name)
        state = "unknown" if seen is None else seen.state
        rows.append((name, role, state, *_copy(copy)))
    heads = ("server", "is to be", "server is", "acts as", "has index", "committed", "on disk")
    lines += table(heads, rows)
    primary = found.copies.get(found.primary)
    if primary is not None:
        lines += [f"{name} is {behind} behind" for name, behind in primary.behind if behind]
        if primary.queued_bytes:
            whom = "other copies" if primary.is_waiting else "their turn"
            lines.append(f"{_bytes(primary.queued_bytes)} of updates wait for {whom}")
    count = 1 + len(found.secondaries)
    if count < found.least:
        lines.append(f"its pushes wait: it has {count} of at least {found.least} copies")
    if count < found.wanted:
        lines.append(f"it has {count} of {found.wanted} copies" + (f": {found.why}" if found.why else ""))
    if found.events:
        lines += ["", *_events(found.events)]
    return lines


def _events(events: Sequence[EventSeen]) -> Iterator[str]:
    for event in events[-_EVENTS:]:
        yield f"{_ago(event.seconds):>8}  {event.sentence}"


def _copy(copy: CopySeen | None) -> Sequence[str]:
    if copy is None:
        return ("does not answer", "?", "?", "?")
    indexes = (copy.index, copy.committed, copy.saved)
    return (copy.role, *(str(each) if each >= 0 else "-" for each in indexes))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows below their heads, each column as wide as it must be."""
    whole = [heads, *rows]
    widths = [max(len(row[place]) for row in whole) for place in range(len(heads))]
    wide = [[each.ljust(width) for each, width in zip(row, widths, strict=True)] for row in whole]
    return ["  ".join(row).rstrip() for row in wide]


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
