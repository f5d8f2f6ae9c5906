"""A live terminal table of replicas and parameter servers.

Knows: rich, the height of a terminal. Does not know: the refresh rate, the source of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cotswold.ui import doing

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_OTHER_LINES = 14
"""Terminal lines for bars, headings and recent output."""
_LEAST = 4


def tables(event: Mapping[str, object], height: int) -> list[Table]:
    """Tables with a row per replica and a row per server, cut to a terminal of ``height`` lines.

    If not all fit, the waiting and the slowest are shown.
    """
    servers = doing.rows(event, "servers")
    replicas = doing.rows(event, "each")
    room = max(_LEAST, height - _OTHER_LINES)
    of_servers = max(2, min(len(servers), room // 3))
    return [_replicas(replicas, max(2, room - of_servers)), _servers(servers, of_servers)]


def evaluator_lines(event: Mapping[str, object]) -> list[Text]:
    """A line for each evaluator (there is at most one)."""
    from rich.text import Text

    return [
        Text(
            f"{row.get('name')} {doing.evaluator_does(row)}, {doing.since(row)}\n",
            style="bold red" if doing.is_silent(row) else "",
        )
        for row in doing.rows(event, "evaluators")
    ]


def _replicas(rows: list[doing.Row], room: int) -> Table:
    table = _table("replica", "samples/s", "staleness", "assigned", "does", "for")
    for row in _chosen(rows, room, "samples_per_second"):
        since = doing.since_seconds(row)
        table.add_row(
            str(row.get("name")),
            f"{doing.figure(row, 'samples_per_second'):,.0f}",
            f"{doing.figure(row, 'staleness'):.1f}",
            f"{doing.figure(row, 'in_hand'):,.0f}",
            doing.replica_does(row),
            doing.seconds_in_words(since),
            style="bold red" if doing.is_silent(row) else "",
        )
    _say_more(table, len(rows) - room, "replicas")
    return table


def _servers(rows: list[doing.Row], room: int) -> Table:
    saves = any(doing.has_disk(row) for row in rows)
    parts = ("leads", "copies", "term", "lag") if any(doing.is_copied(row) for row in rows) else ("shards",)
    table = _table(
        *("server", "updates/s", "queue", *parts), *(("not on disk", "since") if saves else ()), "does"
    )
    for row in _chosen(rows, room, "updates_per_second"):
        dirty = doing.bytes_in_words(doing.figure(row, "dirty_bytes"))
        window = doing.seconds_in_words(doing.figure(row, "window_seconds"))
        table.add_row(
            str(row.get("name")),
            f"{doing.figure(row, 'updates_per_second'):,.0f}",
            doing.bytes_in_words(doing.figure(row, "waiting")),
            *(f"{doing.figure(row, part):.0f}" for part in parts),
            *((dirty, window) if saves else ()),
            doing.server_does(row),
            style="bold red" if doing.is_silent(row) else "",
        )
    _say_more(table, len(rows) - room, "servers")
    return table


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(names):
        is_text = place == 0 or name == "does"
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return table


def _chosen(rows: list[doing.Row], room: int, rate: str) -> list[doing.Row]:
    """All rows if they fit; otherwise the silent and the slowest ones, in their order."""
    if len(rows) <= room:
        return rows
    worst = sorted(rows, key=lambda row: (not doing.is_silent(row), doing.figure(row, rate)))[:room]
    return [row for row in rows if any(row is each for each in worst)]


def _say_more(table: Table, more: int, what: str) -> None:
    if more > 0:
        cells = [
            f"{more:,} more {what}, which are faster" if name == "does" else "" for name in _names(table)
        ]
        table.add_row("...", *cells[1:])


def _names(table: Table) -> list[str]:
    return [str(column.header) for column in table.columns]
