"""Tables that fit the terminal; result files and arguments of the `bench` commands.

Knows: rich, JSON, where results go. Does not know: the measurements.
"""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.cli.support.json_output import print_json
from cotswold.cli.support.number_lists import numbers_of

if TYPE_CHECKING:
    from rich.table import Table

    from cotswold.bench.measure import Document


def command() -> str:
    """Return the command as typed, without the path of the program."""
    return shlex.join(["cotswold", *sys.argv[1:]])


def write_result(found: Document, name: str, out: Path | None, json_: bool) -> None:
    """Write the result to a directory, and print it as JSON if requested."""
    write(found, name, out)
    if json_:
        print_json(f"bench.{name}", found)


def write(found: Document, name: str, out: Path | None) -> None:
    """Replace the result file atomically, so that a concurrent reader sees a whole one."""
    if out is None:
        return
    from cotswold.errors import MachineError
    from cotswold.files import disk_errors, replace_file

    create_result_folder(out)
    with disk_errors(out / f"{name}.json", MachineError, "free some"):
        replace_file(out / f"{name}.json", (json.dumps(found) + "\n").encode())


def create_result_folder(out: Path | None) -> None:
    """Create the directory of a result before the measurement; raises UserError if that fails."""
    from cotswold.errors import UserError

    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--out {out} cannot be created ({error.strerror}); give another directory"
        ) from error


def table(title: str, rows: Sequence[Mapping[str, object]], *, sections: str | None = None) -> None:
    """Print rows under the names of their cells, with a line where the cell ``sections`` changes."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table()
    headings = [heading.replace("_", " ") for heading in rows[0]]
    cells = [[f"{one:,}" if isinstance(one, int) else str(one) for one in row.values()] for row in rows]
    for heading in headings:
        drawn.add_column(heading, justify="right")
    for row, texts, following in zip(rows, cells, [*rows[1:], None], strict=True):
        last = sections is not None and following is not None and row[sections] != following[sections]
        drawn.add_row(*texts, end_section=last)
    print(textwrap.fill(title, Console().width))
    print_fitting(drawn, headings, cells)


def print_fitting(drawn: Table, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table that is ``drawn`` with a row for each of ``cells``.

    If it is too wide, rows become columns, as many at a time as fit, so that no cell is cut. The width is
    that of the terminal; without one COLUMNS, or 80.
    """
    from rich.console import Console

    console = Console(emoji=False, markup=False)  # names of classes may contain markup
    if fits(drawn):
        console.print(drawn)
        return
    cells = list(cells)
    while cells:
        count = len(cells)
        while count > 1 and _width(_transposed_table(headings, cells[:count])) > console.width:
            count -= 1
        console.print(_transposed_table(headings, cells[:count]))
        cells = cells[count:]


def fits(drawn: Table) -> bool:
    """True if a table is no wider than the terminal."""
    from rich.console import Console

    return _width(drawn) <= Console().width


def _transposed_table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Return a transposed table: every row becomes a column, after a column of names."""
    from rich.table import Table

    drawn = Table(show_header=False)
    drawn.add_column(justify="left")
    for _ in cells:
        drawn.add_column(justify="right")
    for line in zip(headings, *cells, strict=True):
        drawn.add_row(*line)
    return drawn


def _width(drawn: Table) -> int:
    """Return the width that a table needs uncut, in terminal columns."""
    from rich.console import Console

    return Console(width=10_000, emoji=False, markup=False).measure(drawn).maximum


def thread_counts(words: str | None) -> list[int]:
    """Parse numbers of threads such as 1,2; raises UserError for other texts."""
    from cotswold.host import granted_cores

    return numbers_of(words, "--threads must be numbers, as in 1,2") or [granted_cores(environ={})]


def require_positive(number: int, option: str) -> int:
    """Return the number of an option; raises UserError below 1."""
    from cotswold.errors import UserError

    if number < 1:
        raise UserError(f"{option} must be at least 1, got {number}")
    return number
