"""State of a cluster as lines of text.

Knows: tables, words. Does not know: how a cluster is queried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cotswold.phrases import counted
from cotswold.ui.format import bytes_in_words
from cotswold.ui.terminal import printable

if TYPE_CHECKING:
    from cotswold.api.servers.cluster_admin import Explained, Overview
    from cotswold.ui.screen import Screen
    from cotswold.wire import BucketStatus, ClusterEvent, ReplicaServerStatus
    from cotswold.wire.lifecycle import BucketReplicaStatus, ServerReport

EVENTS = 20
"""Events that are shown by default."""
_SHORT = 5
_MAX_NAMED_SERVERS = 3
"""Number of missing servers that are named."""
_REFUSED = {
    "strangers": "from callers without the token, or without the key of the named server",
    "malformed": "that are malformed",
    "oversized": "that are too long",
    "version": "of another version of the protocol",
    "early": "about servers that are not registered yet",
}
"""Refused messages of a controller, by reason."""
_SERVER_HEADS = (
    *("server", "host", "process", "state", "heartbeat", "leads", "copies", "lag"),
    *("not on disk", "window", "refused"),
)
_OMITTED_FIRST = ("refused", "process", "not on disk", "window", "host", "lag", "leads")
"""Columns of servers that a narrow screen leaves out, in this order."""
_ABSENT_STATES = "ended", "gone", "drained"
"""States of servers that have no process, or are silent."""


def lines_of(found: Overview, events: int = EVENTS, screen: Screen | None = None) -> list[str]:
    """Return a cluster's lines, with the last ``events``, or with those that fit on a ``screen``."""
    lines = list(_lines(found, None if screen is None else screen.columns))
    said = list(_events(found.status.events, events))
    if screen is not None:
        fitting = screen.fit(said[::-1], screen.rows_of([*lines, ""]))
        said = said[len(said) - fitting :]
    return [*lines, "", *said] if said else lines


def _lines(found: Overview, columns: int | None) -> Iterator[str]:
    looked = found.status
    word = "copy" if looked.replication_factor == 1 else "copies"
    copies = f"{looked.replication_factor} {word} of each bucket, {looked.least} at least"
    process = f" (process {looked.process})" if looked.process else ""
    yield f"{looked.controller} leads the controllers{process}; {copies}"
    if refused := ", ".join(f"{count} {_REFUSED.get(why, why)}" for why, count in looked.refused if count):
        yield f"refused messages: {refused}"
    yield ""
    idle = [each for each in looked.servers if each.state in _ABSENT_STATES and not each.copies]
    shown = [each for each in looked.servers if each not in idle]
    if shown:
        rows = [_server(each, found.reports.get(each.name)) for each in shown]
        yield from fitting_table(_SERVER_HEADS, rows, columns)
    else:
        yield "no server is running" + ("" if idle else " yet")
    if ended := [each.name for each in idle if each.state == "ended"]:
        yield _spare_servers_line(ended, "not running any more")
    if silent := [each.name for each in idle if each.state == "gone"]:
        yield _spare_servers_line(silent, "silent")
    if drained := [each.name for each in idle if each.state == "drained"]:
        line = _spare_servers_line(drained, "drained")
        yield f"{line}; `cotswold cluster drain NAME --back` takes one back"
    yield ""
    if looked.runs:
        rows = [
            (
                each.run,
                printable(each.name) or "?",
                str(each.buckets),
                str(each.short or "-"),
                str(each.waiting or "-"),
            )
            for each in looked.runs
        ]
        yield from table(("run", "recipe", "buckets", "with too few copies", "whose pushes wait"), rows)
    else:
        yield "the cluster has no run"
    yield from _short(looked.short, sum(each.short for each in looked.runs))
    if looked.moving:
        are = "is moving" if looked.moving == 1 else "are moving"
        yield f"{counted(looked.moving, 'bucket')} {are}"


def _short(buckets: Sequence[BucketStatus], count: int) -> Iterator[str]:
    """Yield a line for each reason of too few copies, so that none hides another.

    A controller lists at most 100 buckets.
    """
    least = "at least " if count > len(buckets) else ""
    alike: dict[tuple[str, str], list[BucketStatus]] = {}
    for each in buckets:
        alike.setdefault((each.bucket.partition("/")[0], each.why), []).append(each)
    for (run, why), group in list(alike.items())[:_SHORT]:
        first, *others = group
        if others:
            yield f"{least}{counted(len(group), 'bucket')} of {run}: {why}"
        else:
            yield f"{first.bucket}, term {first.term}: {', '.join(first.members)}; {why}"
    if len(alike) > _SHORT:
        yield f"and {counted(len(alike) - _SHORT, 'more reason')} in cotswold cluster status --json"


def _spare_servers_line(names: Sequence[str], what: str) -> str:
    """Return a line about servers that are ``what``, and not needed."""
    more = f" and {len(names) - _MAX_NAMED_SERVERS} more" if len(names) > _MAX_NAMED_SERVERS else ""
    are, have = ("is", "has no copy") if len(names) == 1 else ("are", "have no copies")
    return f"{', '.join(names[:_MAX_NAMED_SERVERS])}{more} {are} {what}, and {have}"


def _server(seen: ReplicaServerStatus, report: ServerReport | None) -> Sequence[str]:
    heartbeat = "-" if seen.seconds < 0 else f"{seen.seconds:.1f} s ago"
    process = "?" if report is None else str(report.process)
    known = (seen.name, seen.host or "?", process, seen.state, heartbeat, str(seen.leads), str(seen.copies))
    if report is None:
        return (*known, "?", "?", "?", "?")
    lag = max((behind for each in report.copies for _, behind in each.lags), default=0)
    refused = sum(count for _, count in report.rejected)
    disk = ("no disk", "-")
    if report.has_disk:
        disk = (bytes_in_words(report.dirty_bytes), f"{report.window_seconds:.1f} s")
    return (*known, str(lag), *disk, str(refused or "-"))


def explaining(found: Explained, events: int = EVENTS) -> list[str]:
    """Return the lines of a bucket, with its last ``events``."""
    lines = [
        f"{found.bucket}, term {found.term}"
        + (f", incarnation {found.incarnation}" if found.incarnation else "")
    ]
    members = (found.primary, *found.secondaries, *found.learners)
    rows = []
    for name in members:
        role = "primary" if name == found.primary else "learner" if name in found.learners else "secondary"
        seen, copy = found.servers.get(name), found.copies.get(name)
        state = "unknown" if seen is None else seen.state
        rows.append((name, role, state, *_copy(copy)))
    heads = ("server", "should be", "server is", "acts as", "has index", "committed", "on disk")
    lines += table(heads, rows)
    primary = found.copies.get(found.primary)
    if primary is not None:
        lines += [f"{name} is {behind} behind" for name, behind in primary.lags if behind]
        if primary.queued_bytes:
            whom = "other copies" if primary.is_blocked else "their turn"
            lines.append(f"{bytes_in_words(primary.queued_bytes)} of updates wait for {whom}")
    count = 1 + len(found.secondaries)
    if count < found.min_copies:
        lines.append(f"pushes wait: the bucket has {count} of at least {counted(found.min_copies, 'copy')}")
    if count < found.wanted_copies:
        lines.append(
            f"the bucket has {count} of {counted(found.wanted_copies, 'copy')}"
            + (f": {found.why}" if found.why else "")
        )
    said = list(_events(found.events, events))
    return [*lines, "", *said] if said else lines


def _events(events: Sequence[ClusterEvent], most: int) -> Iterator[str]:
    for event in events[len(events) - min(most, len(events)) :]:
        yield f"{_time_ago(event.seconds):>8}  {printable(event.sentence)}"


def _copy(copy: BucketReplicaStatus | None) -> Sequence[str]:
    if copy is None:
        return ("does not answer", "?", "?", "?")
    indexes = (copy.index, copy.committed, copy.durable_index)
    return (copy.role, *(str(each) if each >= 0 else "-" for each in indexes))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows below their heads; each column is as wide as its content."""
    whole = [heads, *rows]
    widths = [max(len(row[place]) for row in whole) for place in range(len(heads))]
    wide = [[each.ljust(width) for each, width in zip(row, widths, strict=True)] for row in whole]
    return ["  ".join(row).rstrip() for row in wide]


def fitting_table(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Align rows below their heads, without the least important columns if they are wider than a screen.

    A line names the columns that are left out. None means no limit.
    """
    lines, left_out = table(heads, rows), list[str]()
    for name in _OMITTED_FIRST:
        if columns is None or max(map(len, lines)) <= columns:
            break
        left_out.append(name)
        kept = [place for place, head in enumerate(heads) if head not in left_out]
        lines = table([heads[place] for place in kept], [[row[place] for place in kept] for row in rows])
    if left_out:
        lines.append(f"left out for {columns} columns: {', '.join(left_out)}; --json has all")
    return lines


def _time_ago(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"
