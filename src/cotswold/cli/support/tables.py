"""What the commands of `bench` share: tables, files of results, their words.

Knows: rich, JSON, where results go. Does not know: what was measured.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from cotswold.bench.measure import Document

WIDE = 180
"""Columns of a table that no terminal shows."""


def command() -> str:
    """The command as it was typed, without the place of the programme."""
    return shlex.join(["cotswold", *sys.argv[1:]])


def leave(found: Document, name: str, out: Path | None, json_: bool) -> None:
    """Write the result to a directory and print it as JSON, where either is wanted."""
    write(found, name, out)
    if json_:
        print(json.dumps(found))


def write(found: Document, name: str, out: Path | None) -> None:
    """Replace the file of a result at once, so that whoever reads it meanwhile reads a whole one."""
    if out is None:
        return
    from cotswold.errors import MachineError
    from cotswold.files import disk_errors, replace_file

    ready(out)
    with disk_errors(out / f"{name}.json", MachineError, "free some"):
        replace_file(out / f"{name}.json", (json.dumps(found) + "\n").encode())


def ready(out: Path | None) -> None:
    """Make the directory of a result, before anything is measured; raises UserError where that cannot be."""
    from cotswold.errors import UserError

    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made ({error.strerror}); name another directory") from error


def table(title: str, rows: Sequence[Mapping[str, object]], *, sections: str | None = None) -> None:
    """Print rows under the names of their cells; a line is drawn where the cell ``sections`` changes.

    Where a terminal is too narrow for that, rows stand side by side, as many as there is room for.
    """
    from rich.console import Console
    from rich.table import Table

    console, drawn = Console(), Table(title=title, title_justify="left")
    headings = [heading.replace("_", " ") for heading in rows[0]]
    cells = [[f"{one:,}" if isinstance(one, int) else str(one) for one in row.values()] for row in rows]
    for heading in headings:
        drawn.add_column(heading, justify="right")
    for row, texts, following in zip(rows, cells, [*rows[1:], None], strict=True):
        last = sections is not None and following is not None and row[sections] != following[sections]
        drawn.add_row(*texts, end_section=last)
    if not console.is_terminal:
        Console(width=WIDE).print(drawn)
        return
    if _width(drawn) <= console.width:
        console.print(drawn)
        return
    while cells:
        count = len(cells)
        while count > 1 and _width(_on_its_side(title, headings, cells[:count])) > console.width:
            count -= 1
        console.print(_on_its_side(title, headings, cells[:count]))
        cells = cells[count:]


def _on_its_side(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """A table of which every column is a row, beside the names of its cells."""
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", show_header=False)
    drawn.add_column(justify="left")
    for _ in cells:
        drawn.add_column(justify="right")
    for line in zip(headings, *cells, strict=True):
        drawn.add_row(*line)
    return drawn


def _width(drawn: Table) -> int:
    """Columns of a terminal that a table takes if nothing is cut."""
    from rich.console import Console

    return Console(width=10_000).measure(drawn).maximum


def thread_counts(words: str | None) -> list[int]:
    """Numbers of threads from words such as 1,2; raises UserError for others."""
    from cotswold.errors import UserError

    if words is None:
        return [cores()]
    numbers = [word.strip() for word in words.split(",")]
    if not all(number.isdigit() and int(number) >= 1 for number in numbers):
        raise UserError(f"--threads {words} names no numbers of threads; write them as in 1,2")
    return [int(number) for number in numbers]


def at_least_one(number: int, option: str) -> int:
    """The number of an option; raises UserError below 1."""
    from cotswold.errors import UserError

    if number < 1:
        raise UserError(f"{option} {number} measures nothing; give 1 or more")
    return number


def cores() -> int:
    """Cores that this process and those that it starts are granted together."""
    from cotswold.host import granted_cores

    return granted_cores(environ={})
