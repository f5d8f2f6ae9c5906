"""Tables in text files: CSV with any delimiter, possibly compressed by gzip.

Knows: delimiters, quotes, byte order marks, lines. Does not know: the meaning of the values.
"""

from __future__ import annotations

import csv
import io
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import open_binary, size_of
from cotswold.data.formats.text_columns import BLOCK_ROWS, TextColumn
from cotswold.data.sources.file_names import composed
from cotswold.errors import SourceError

SUFFIXES = (".csv", ".tsv", ".txt", ".tab", ".data")
DELIMITERS = (",", ";", "\t", "|")
_SNIFFED_LINES = 200
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"


@dataclass(frozen=True)
class CsvTable:
    """The values of a text file as texts without surrounding blanks.

    Args:
        columns: The values of every column, without the header.
        lines: Line of each row in the file, from 1, int64 (row,).
        header: Values of the first line, if it has names.
    """

    columns: list[TextColumn]
    lines: NDArray[np.int64]
    header: tuple[str, ...] | None


def is_csv(name: str) -> bool:
    """True for the name of a text table, such as `bank.csv.gz`."""
    return name.lower().removesuffix(".gz").endswith(SUFFIXES)


def read_csv(
    path: Path, delimiter: str | None, header: bool | None, missing: frozenset[str], decimal: str = "."
) -> CsvTable:
    """Read a text file.

    Args:
        path: The file.
        delimiter: Character between values; None to detect it.
        header: True if the first line has names; None to detect it: a line with a number or a missing value
            is a row. An empty name alone does not decide; its column is called "unnamed" with its position.
        missing: Texts that mean a missing value.
        decimal: Decimal mark of numbers; "," is then no delimiter.

    Raises:
        SourceError: if the file is empty, its lines have different numbers of values, or it is not text.
    """
    if path.suffix.lower() == ".gz":
        size_of(path)
    delimiter = delimiter or _find_delimiter(path, decimal)
    rows = _rows(path, delimiter)
    start = next(rows, None)
    if start is None:
        raise SourceError(f"{path} has no rows; give a table with values")
    first = _cleaned(start[1])
    if header is None:
        values = list(filter(None, first))
        header = bool(values) and not any(
            value in missing or is_number(value.replace(decimal, ".")) for value in values
        )
    names = tuple(name or f"unnamed {at}" for at, name in enumerate(first)) if header else None
    columns = [TextColumn() for _ in first]
    lines = array("q")
    rest = rows if header else chain([start], rows)
    while block := list(islice(rest, BLOCK_ROWS)):
        for line, row in block:
            if len(row) != len(first):
                raise SourceError(
                    f"{path}, line {line}: {len(row)} values separated by {delimiter!r}, but line {start[0]} "
                    f"has {len(first)}; correct the line, put values that contain the delimiter in quotes, "
                    "or set delimiter"
                )
            lines.append(line)
        for column, texts in zip(columns, zip(*(row for _, row in block), strict=True), strict=True):
            column.extend(_cleaned(texts))
    if not lines:
        raise SourceError(
            f"{path} has one line, which is taken as names; give rows, or set header = false if it is a row"
        )
    return CsvTable(columns, np.array(lines, np.int64), names)


def _cleaned(values: Sequence[str]) -> list[str]:
    """Return texts without surrounding blanks, in Unicode's composed form."""
    texts = list(map(str.strip, values))
    return texts if "".join(texts).isascii() else list(map(composed, texts))


def is_number(text: str) -> bool:
    """True if a text is a finite decimal number.

    >>> is_number("-1.5e3"), is_number("1_000"), is_number("nan")
    (True, False, False)
    """
    if not text or text[-1] not in "0123456789." or "_" in text:
        return False
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def _find_delimiter(path: Path, decimal: str) -> str:
    """Return the delimiter that gives most of the first lines equally many values.

    If several do, a comma is the last choice, because numbers and names may have one; else the most values
    count.
    """
    found: dict[str, tuple[int, bool, int]] = {}
    for delimiter in DELIMITERS:
        if delimiter == decimal:
            continue
        widths = Counter[int]()
        with suppress(SourceError):  # a faulty line further down leaves the lines before it
            for _, row in _rows(path, delimiter, _SNIFFED_LINES):
                widths[len(row)] += 1
        if widths:
            width, count = widths.most_common(1)[0]
            found[delimiter] = (count if width > 1 else 0, delimiter != ",", width)
    best = max(found, key=lambda each: found[each], default=",")
    if found and found[best][-1] == 1:
        _refuse_blanks(path, best, decimal)
    return best


def _refuse_blanks(path: Path, delimiter: str, decimal: str) -> None:
    """Raise SourceError if blanks, not a delimiter, separate numbers in all of the first lines."""
    rows: list[list[str]] = []
    with suppress(SourceError):  # reported when the line is read
        for _, row in _rows(path, delimiter, _SNIFFED_LINES):
            rows.append(delimiter.join(row).split())
    values = [value for row in rows for value in row]
    numbers = sum(is_number(value.replace(decimal, ".")) for value in values)
    if len(rows[0]) > 1 and {len(row) for row in rows} == {len(rows[0])} and 2 * numbers >= len(values):
        raise SourceError(
            f'{path} has {len(rows[0])} values separated by blanks in each line; set delimiter = " "'
        )


def _rows(path: Path, delimiter: str, most: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the line at which a row begins and its values, without empty lines, at most ``most``."""
    with _open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        count, line = 0, 1
        try:
            for row in reader:
                if len(row) > 1 or any(map(str.strip, row)):
                    count += 1
                    yield line, row
                if count == most:
                    return
                line = reader.line_num + 1
        except csv.Error as error:
            raise SourceError(
                f"{path}, line {line}: the line cannot be read ({error}); correct its quotes, or set "
                "delimiter"
            ) from error
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{path}, near line {reader.line_num + 1}: the text is not UTF-8 ({error.reason}); convert "
                f"the file, for instance: iconv -f latin1 -t utf-8 {path.name}"
            ) from error


@contextmanager
def _open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    with open_binary(path) as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_GZIP):
            raise SourceError(f"{path} is compressed by gzip; rename it to {path.name}.gz")
        if start == _ZIP:
            raise SourceError(
                f"{path} is a zip file, as those of Excel are; unpack it, or give a frame: "
                "pandas.read_excel(...)"
            )
        encoding = "utf-16" if start.startswith(_UTF16) else "utf-8-sig"
        with io.TextIOWrapper(file, encoding, newline="") as text:
            yield text
