"""A live table of replicas and parameter servers for a terminal.

Knows: rich, the height of a terminal. Does not know: the refresh rate, the origin of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cotswold.ui import activity
from cotswold.ui.format import bytes_in_words, seconds_in_words

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_OTHER_LINES = 14
"""Lines of the terminal for bars, headings and the last messages."""
_LEAST = 4
_REPLICATED = {
    "primary_buckets": "primary",
    "bucket_replicas": "replicas",
    "term": "term",
    "lag_changes": "lag",
}
"""Columns of replicated servers: fields and headings."""


def tables(event: Mapping[str, object], height: int) -> list[Table]:
    """Return a table with a row per replica and one with a row per server, for a terminal of ``height``
    lines.

    If there are more, silent ones and the slowest are shown.
    """
    servers = activity.rows(event, "servers")
    replicas = activity.rows(event, "replicas")
    room = max(_LEAST, height - _OTHER_LINES)
    of_servers = max(2, min(len(servers), room // 3))
    return [_replicas(replicas, max(2, room - of_servers)), _servers(servers, of_servers)]


def evaluator_lines(event: Mapping[str, object]) -> list[Text]:
    """Return a line for the evaluator, if there is one."""
    from rich.text import Text

    return [
        Text(
            f"{row.get('name')} {activity.describe_evaluator(row)}, {activity.describe_duration(row)}\n",
            style="bold red" if activity.is_silent(row) else "",
        )
        for row in activity.rows(event, "evaluators")
    ]


def _replicas(rows: list[activity.Row], room: int) -> Table:
    table = _table("replica", "samples/s", "staleness", "in flight", "does", "for")
    for row in _select_rows(rows, room, "samples_per_second"):
        since = activity.since_seconds(row)
        table.add_row(
            str(row.get("name")),
            f"{activity.figure(row, 'samples_per_second'):,.0f}",
            f"{activity.figure(row, 'staleness'):.1f}",
            f"{activity.figure(row, 'samples_in_flight'):,.0f}",
            activity.replica_does(row),
            seconds_in_words(since),
            style="bold red" if activity.is_silent(row) else "",
        )
    _add_hidden_rows_note(table, len(rows) - room, "replicas")
    return table


def _servers(rows: list[activity.Row], room: int) -> Table:
    saves = any(activity.has_disk(row) for row in rows)
    parts = _REPLICATED if any(activity.is_copied(row) for row in rows) else {"shards": "shards"}
    table = _table(
        *("server", "updates/s", "queue", *parts.values()),
        *(("not on disk", "since") if saves else ()),
        "does",
    )
    for row in _select_rows(rows, room, "updates_per_second"):
        dirty = bytes_in_words(activity.figure(row, "dirty_bytes"))
        window = seconds_in_words(activity.figure(row, "dirty_seconds"))
        table.add_row(
            str(row.get("name")),
            f"{activity.figure(row, 'updates_per_second'):,.0f}",
            bytes_in_words(activity.figure(row, "queued_bytes")),
            *(f"{activity.figure(row, part):.0f}" for part in parts),
            *((dirty, window) if saves else ()),
            activity.server_does(row),
            style="bold red" if activity.is_silent(row) else "",
        )
    _add_hidden_rows_note(table, len(rows) - room, "servers")
    return table


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(names):
        is_text = place == 0 or name == "does"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table


def _select_rows(rows: list[activity.Row], room: int, rate: str) -> list[activity.Row]:
    """Return all rows if they fit; otherwise the silent and slowest ones, in their order."""
    if len(rows) <= room:
        return rows
    worst = sorted(rows, key=lambda row: (not activity.is_silent(row), activity.figure(row, rate)))[:room]
    return [row for row in rows if any(row is each for each in worst)]


def _add_hidden_rows_note(table: Table, more: int, what: str) -> None:
    if more > 0:
        cells = [
            f"{more:,} more {what}, which are faster" if name == "does" else "" for name in _names(table)
        ]
        table.add_row("...", *cells[1:])


def _names(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]
