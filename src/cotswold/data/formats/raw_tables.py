"""Tables from text files, Parquet, data frames and arrays, as named columns of numbers or texts.

Knows: pandas, polars, PyArrow and NumPy by their methods, and their missing values. Does not know: which
columns a network reads, or how.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.csv_files import CsvTable, is_csv, read_csv
from cotswold.data.formats.text_columns import TextColumn
from cotswold.data.sources.file_names import composed
from cotswold.errors import SourceError, install

Column = NDArray[np.float64] | TextColumn | str
"""Numbers with NaN for missing values; texts, "" if missing; or the reason why the values cannot be used."""

EXACT_MAX = 1 << 53
"""Smaller integers are exact in float64."""
_FRAMES = {"pandas": "a pandas frame", "polars": "a polars frame", "pyarrow": "a PyArrow table"}
DATES = "dates"


@dataclass(frozen=True)
class RawTable:
    """The values of a table before any decision about its columns.

    Args:
        where: The table in messages: a path, or a phrase such as "a pandas frame".
        names: Names of the columns; numbers from 0 if ``is_positional``.
        columns: The values of each column.
        rows: Number of rows.
        lines: Line of each row in its file; None for other tables.
        is_positional: True if the columns have no names.
    """

    where: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: int
    lines: NDArray[np.int64] | None = None
    is_positional: bool = False

    def place(self, row: int) -> str:
        """Return the name of a row in messages."""
        if self.lines is not None:
            return f"{self.where}, line {self.lines[row]}"
        return f"{self.where}, row {row}"

    @property
    def short_name(self) -> str:
        """The name of the table without its folder."""
        return Path(self.where).name if self.lines is not None else self.where

    def digest(self) -> str:
        """Return a SHA-256 of all values."""
        digest = hashlib.sha256()
        for name, column in zip(self.names, self.columns, strict=True):
            kind = "list" if isinstance(column, TextColumn) else type(column).__name__
            digest.update(f"{name}\0{kind}\0".encode())
            if isinstance(column, np.ndarray):
                digest.update(column.tobytes())
            elif isinstance(column, TextColumn):
                digest.update("\0".join(column).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def raw_table(
    source: object,
    *,
    delimiter: str | None,
    header: bool | None,
    missing: frozenset[str],
    decimal: str = ".",
) -> RawTable:
    """Read a table.

    Args:
        source: Path of a text file or Parquet file, a frame of pandas or polars, a PyArrow table, a NumPy
            array (two-dimensional or structured), or a mapping from names to columns.
        delimiter: Character between values of a text file; None to detect it.
        header: True if the first line of a text file has names; None to detect it.
        missing: Texts that mean a missing value.
        decimal: Decimal mark of numbers in a text file.

    Raises:
        SourceError: if the table cannot be read, is empty, or has duplicate names.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix.lower() in (".parquet", ".pq"):
            return _of_columns(str(path), *_parquet(path))
        if not is_csv(path.name):
            raise SourceError(
                f"{path} is not a known kind of table; give a CSV file (.csv, .tsv, .txt, also .gz) or a "
                "Parquet file, or from Python a frame of pandas or polars"
            )
        return _of_csv(path, read_csv(path, delimiter, header, missing, decimal))
    if isinstance(source, np.ndarray):
        return _of_array(source)
    if isinstance(source, Mapping):
        columns = [np.asarray(column) for column in source.values()]
        return _of_columns("the table", [str(name).strip() for name in source], columns)
    package = type(source).__module__.partition(".")[0]
    if hasattr(source, "collect") and package == "polars":
        raise SourceError("the source is a lazy frame of polars; give frame.collect()")
    if package not in _FRAMES or not hasattr(source, "columns"):
        raise SourceError(
            f"the source is no table but of type {type(source).__name__}; give a path, a frame of pandas or "
            "polars, a NumPy array, or a mapping from names to columns"
        )
    frame: Any = source
    names = list(frame.column_names if package == "pyarrow" else frame.columns)
    texts = [str(name).strip() for name in names]
    _check_names(_FRAMES[package], texts)
    positional = package == "pandas" and names == list(range(len(names)))
    return _of_columns(_FRAMES[package], texts, [_array(frame[name]) for name in names], positional)


def _array(column: Any) -> NDArray[Any]:
    """Return a column of a frame; integers with missing values as objects, which keep all digits."""
    missing = getattr(column, "hasnans", None)  # pandas
    if missing is None:
        missing = column.null_count  # an attribute in PyArrow, a method in polars
    kind = str(getattr(column, "type", getattr(column, "dtype", ""))).lower()
    if kind.startswith(("int64", "uint64")) and (missing() if callable(missing) else missing):
        found = np.empty(len(column), object)
        found[:] = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        return found
    return np.asarray(column.to_numpy())


def _parquet(path: Path) -> tuple[list[str], list[NDArray[Any]]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SourceError(f"{path}: Parquet files need PyArrow: {install('tables')}") from error
    try:
        found = parquet.read_table(path)
    except (OSError, ValueError) as error:  # PyArrow's errors are subclasses of these
        raise SourceError(f"{path} cannot be read as Parquet ({error}); write it again") from error
    return list(map(str.strip, found.column_names)), list(map(_array, found.columns))


def _of_csv(path: Path, found: CsvTable) -> RawTable:
    positional = found.header is None
    names = tuple(map(str, range(len(found.columns)))) if found.header is None else found.header
    if not positional:
        _check_names(str(path), names)
    return RawTable(str(path), names, tuple(found.columns), len(found.lines), found.lines, positional)


def _of_array(array: NDArray[Any]) -> RawTable:
    if array.dtype.names is not None and array.ndim == 1:
        return _of_columns(
            "the structured array", list(array.dtype.names), [array[name] for name in array.dtype.names]
        )
    if array.ndim != 2:
        raise SourceError(
            f"the array has shape {array.shape}; a table is (row, column), or a structured array (row,)"
        )
    return _of_columns("the array", list(map(str, range(array.shape[1]))), list(array.T), True)


def _of_columns(
    where: str, names: Sequence[str], columns: Sequence[NDArray[Any]], is_positional: bool = False
) -> RawTable:
    _check_names(where, names)
    single = next((name for name, column in zip(names, columns, strict=True) if not column.ndim), None)
    if single is not None:
        raise SourceError(f"{where} has a single value for {single!r}; give a list of values for each column")
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise SourceError(f"{where} has columns of {sorted(lengths)} rows; give columns of equal length")
    if not lengths or 0 in lengths:
        raise SourceError(f"{where} has no rows; give a table with values")
    found = tuple(
        _column(f"{where}, column {name!r}", each) for name, each in zip(names, columns, strict=True)
    )
    return RawTable(where, tuple(names), found, lengths.pop(), None, is_positional)


def _check_names(where: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise SourceError(
            f"{where} has several columns with the name {twice[0]!r}; rename them, or set header = false if "
            "the first line is a row"
        )


def _column(where: str, values: NDArray[Any]) -> Column:
    """Return the numbers or texts of an array."""
    if values.ndim != 1:
        return f"values of shape {values.shape[1:]}"
    kind = values.dtype.kind
    if kind in "iuf":
        numbers = values.astype(np.float64)
        if kind in "iu" and values.dtype.itemsize > 4:
            large = np.abs(numbers) >= EXACT_MAX
            if any(map(is_rounded, values[large].tolist())):
                return TextColumn(map(str, values.tolist()))
        return numbers
    if kind == "b":
        return TextColumn(map(str, values.tolist()))
    if kind in "Mm":
        return DATES
    if kind in "SUT":
        return TextColumn(map(text_of, values.tolist()))
    return _of_objects(values.tolist()) if kind == "O" else f"values of type {values.dtype}"


def _of_objects(values: list[Any]) -> Column:
    """Return numbers if all values are numbers or missing, else texts.

    Integers that float64 does not represent exactly make texts of all values.
    """
    present = [value for value in values if not _is_missing(value)]
    if any(isinstance(value, datetime.date | datetime.time | datetime.timedelta) for value in present):
        return DATES
    is_numeric = all(
        isinstance(value, int | float | decimal.Decimal | np.number) and not isinstance(value, bool)
        for value in present
    )
    if present and is_numeric and not any(map(_loses_digits, present)):
        return np.array([math.nan if _is_missing(value) else float(value) for value in values])
    strange = next((value for value in present if isinstance(value, list | tuple | dict | np.ndarray)), None)
    if strange is not None:
        return f"values of type {type(strange).__name__}"
    return TextColumn("" if _is_missing(value) else text_of(value) for value in values)


def is_rounded(value: int | np.integer[Any]) -> bool:
    """True for an integer that float64 does not represent exactly.

    >>> is_rounded(1 << 60), is_rounded((1 << 60) + 1)
    (False, True)
    """
    try:
        return int(float(value)) != int(value)
    except OverflowError:
        return True


def _loses_digits(value: Any) -> bool:
    if isinstance(value, decimal.Decimal):
        return value.is_finite() and value == value.to_integral_value() and is_rounded(int(value))
    return isinstance(value, int | np.integer) and is_rounded(value)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def text_of(value: object) -> str:
    """Return a value as the name of a category: whole floats without their fraction.

    >>> text_of(3.0), text_of("a "), text_of(True)
    ('3', 'a', 'True')
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return composed(str(value).strip())
