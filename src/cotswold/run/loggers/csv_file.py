"""The logger `csv`: `metrics.csv` in the run's directory, a row for each step and validation.

Knows: the format, columns that appear later, which events return a run to an earlier step. Does not know: the
meaning of a column.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotswold.errors import MachineError
from cotswold.files import disk_errors, open_file, replace_file, write_all
from cotswold.run.loggers.context import LoggerContext

FILE = "metrics.csv"
_KINDS = ("step", "validation")
_FIRST = ("kind", "phase", "step", "time", "seconds")


class CsvFile:
    """An observer of an EventLog that writes a table.

    Each row is written at once. If an event has a new field, the file is replaced by one with that column.
    Rows after the checkpoint of a resumed run are removed, so no step has two rows of a kind.
    """

    name = "csv"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] | None = None
        """The columns of the file; None before it was read."""

    def write(self, event: Mapping[str, object]) -> None:
        """Add a row for a step or a validation."""
        kind, step = event["kind"], event.get("step")
        if kind == "restarted":
            self._replace([], [*_FIRST])
        elif kind == "resumed" and isinstance(step, int):
            rows = [row for row in self._read() if row["step"].isdigit() and int(row["step"]) <= step]
            self._replace(rows, self._columns or [*_FIRST])
        elif kind in _KINDS:
            self._add({name: _text(value) for name, value in event.items() if _is_plain(value)})

    def _add(self, row: Mapping[str, str]) -> None:
        if self._columns is None:
            self._replace(self._read(), self._columns or [*_FIRST])  # also removes a torn last row
        columns = self._columns or [*_FIRST]
        if new := [name for name in row if name not in columns]:
            self._replace(self._read(), [*columns, *new])
            columns += new
        with disk_errors(self._path, MachineError):
            file = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                write_all(file, _line([row.get(name, "") for name in columns]))
            finally:
                os.close(file)

    def _read(self) -> list[dict[str, str]]:
        """Return the complete rows of the file, and note its columns."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        if self._columns is None and reader.fieldnames and {*_FIRST} <= {*reader.fieldnames}:
            self._columns = [*reader.fieldnames]
        return [row for row in reader if None not in row and None not in row.values() and "step" in row]

    def _replace(self, rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> None:
        self._columns = [*columns]
        lines = [self._columns, *([row.get(name, "") for name in columns] for row in rows)]
        with disk_errors(self._path, MachineError):
            replace_file(self._path, b"".join(map(_line, lines)))

    def close(self) -> None:
        """Do nothing: no file is open between two rows."""


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().replace("\r", " ").encode("utf-8", "backslashreplace")


def csv_logger(context: LoggerContext) -> CsvFile:
    """Return the logger of a run.

    Args:
        context: The run.
    """
    return CsvFile(context.run / FILE)
