"""Tables as sources of vectors: a new table for training, or another one with the columns of a run.

Knows: the choice of columns, targets, notes for users. Does not know: file formats, splits, networks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cotswold.data.formats.csv_files import is_csv
from cotswold.data.formats.raw_tables import RawTable, raw_table
from cotswold.data.formats.text_columns import TextColumn
from cotswold.data.preprocessing.table_schema import MISSING_VALUES, TableSchema
from cotswold.data.preprocessing.vectors import VectorPreparation
from cotswold.data.sources.base import hashed
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.sequences import Integers
from cotswold.data.sources.table_columns import find_column, sequence_lengths
from cotswold.data.sources.table_encoding import EncodedRows, encode
from cotswold.data.sources.table_targets import find_target, target_labels
from cotswold.data.sources.table_values import Reading
from cotswold.data.sources.vectors import Rows, VectorArray, VectorSource
from cotswold.errors import SourceError
from cotswold.files import expanded
from cotswold.phrases import counted

Name = str | int
"""A column by its name or its position from 0; a negative position counts from the end."""
_SHOWN = 5


def is_table(source: object) -> bool:
    """True for a path of a text table or Parquet file, and for tables in memory."""
    if isinstance(source, str | Path):
        name = str(source).lower()
        return is_csv(name) or name.endswith((".parquet", ".pq"))
    return not isinstance(source, VectorSource)


class TableSource(VectorSource):
    """Rows of tables as vectors. A missing value is NaN; the transform of a store replaces it.

    Args:
        schema: The columns.
        tables: The tables, each with the split of its rows.
        notes: Sentences for users.
        is_labelled: False to leave out the target.
        identity: A hash of the values, or a function that computes it.
    """

    def __init__(
        self,
        schema: TableSchema,
        tables: Sequence[tuple[RawTable, str | None]],
        notes: Sequence[str],
        is_labelled: bool,
        identity: Any,
    ) -> None:
        found = [encode(schema, table) for table, _ in tables]
        parts = [
            VectorArray(
                table.short_name, (table.rows, schema.features), split, partial(_same, rows), table.where
            )
            for (table, split), (rows, _) in zip(tables, found, strict=True)
        ]
        targets = [table for table, _ in tables] if is_labelled and schema.target is not None else []
        labelling, target_notes = target_labels(schema, targets) if targets else (None, ())
        super().__init__(parts, identity, labelling, sequence_lengths(schema, [table for table, _ in tables]))
        self.kind = "table"
        self.schema = schema
        """The columns and the reading of their values."""
        self.notes = (*notes, *(note for _, notes in found for note in notes), *target_notes)
        """Sentences for users."""
        self._tables = [(table.short_name, table.lines) for table, _ in tables]

    def preparation(
        self,
        *,
        standardise: bool = True,
        dtype: Literal["float32", "float16"] = "float32",
        context: int = 0,
    ) -> VectorPreparation:
        """Return the settings with which `cotswold.data.prepare` makes a store of the table.

        Args:
            standardise: Standardise columns of numbers.
            dtype: Type of stored values.
            context: Rows of the same sequence on each side that are joined with a row.
        """
        return VectorPreparation(self.features, "table", context, standardise, dtype, self.schema)

    @property
    def _noun(self) -> str:
        columns = counted(len(self.schema.columns), "column")
        return f"rows of {columns} ({counted(self.features, 'feature')})"

    def name(self, index: int) -> str:
        """Return the table and the line of a row, or its number."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        name, lines = self._tables[part]
        row = index - self._start(part)
        return f"row {row}" if lines is None else f"{name}:{lines[row]}"

    def settle(self) -> tuple[str, ...]:
        """Return the notes; values were checked when the table was opened."""
        return self.notes

    def _check_finite(self, found: Rows, indices: Integers) -> None:
        """Accept NaN, which is a missing value."""


def table(
    source: object,
    *,
    target: Name | None = None,
    features: Iterable[Name] = (),
    ignore: Iterable[Name] = (),
    test_source: object | None = None,
    target_kind: Literal["auto", "class", "number"] = "auto",
    categorical: Iterable[Name] = (),
    missing: Literal["refuse", "impute"] = "refuse",
    missing_values: Iterable[str] = MISSING_VALUES,
    new_categories: Literal["zeros", "refuse"] = "zeros",
    delimiter: str | None = None,
    header: bool | None = None,
    decimal: Literal[".", ","] = ".",
    sequence: Name | None = None,
) -> TableSource:
    """Open a table: a CSV or Parquet file, a frame of pandas or polars, or an array.

    `cotswold.prepare` makes a store of it. Names of columns may be positions from 0; negative ones count from
    the end.

    Args:
        source: Path of a CSV file (also .gz) or a Parquet file, a frame of pandas or polars, a NumPy array
            (two-dimensional or structured), or a mapping from names to columns.
        target: The column to predict. [none]
        features: The columns to read. [all but the target and ``ignore``]
        ignore: Columns to leave out.
        test_source: A table of the same columns whose rows are the test samples. [none]
        target_kind: "class" or "number" (regression); "auto" takes texts, and integers of at most 20 values,
            as classes.
        categorical: Columns whose numbers are categories, such as postal codes.
        missing: "refuse" raises an error for a missing value; "impute" replaces it by the median, or by the
            most frequent category, of the training split.
        missing_values: Texts that mean a missing value.
        new_categories: Treatment of categories in other tables that this one lacks: "zeros" for all features
            of the column (an error if 20 rows or more have no known category), or "refuse".
        delimiter: Character between the values of a line. [detected]
        header: True if the first line has the names of columns. [detected]
        decimal: Decimal mark of numbers in text files.
        sequence: The column that names the sequence of each row, such as an utterance or a patient. The rows
            of a sequence follow each other. Splits consist of whole sequences. [rows are independent]

    Returns:
        The source, for `cotswold.prepare` and `cotswold.data.prepare`.

    Raises:
        SourceError: if the table cannot be read or a value does not fit its column.
    """
    reading = Reading(_texts(missing_values), decimal)
    main = raw_table(
        _located(source), delimiter=delimiter, header=header, missing=reading.missing, decimal=decimal
    )
    lists = {"features": features, "ignore": ignore, "categorical": categorical}
    for name, given in lists.items():
        if isinstance(given, str | int):
            raise SourceError(f'{name} is a list of columns; write ["{given}"]')
    aim = None if target is None else _position(main, target, "target")
    series = None if sequence is None else _position(main, sequence, "sequence")
    chosen = _chosen(main, {"target": aim, "sequence": series}, features, ignore)
    forced = {_position(main, each, "categorical") for each in categorical}
    found = [find_column(main, at, reading, at in forced) for at in chosen]
    kind, target_note = (None, []) if aim is None else find_target(main, aim, reading, target_kind)
    schema = TableSchema(
        tuple(each.column for each in found),
        main.names,
        main.is_positional,
        None if aim is None else main.names[aim],
        kind,
        missing,
        tuple(sorted(reading.missing)),
        new_categories,
        decimal,
        None if series is None else main.names[series],
        delimiter,
    )
    tables: list[tuple[RawTable, str | None]] = [(main, None)]
    if test_source is not None:
        held = raw_table(
            _located(test_source),
            delimiter=delimiter,
            header=not main.is_positional,
            missing=reading.missing,
            decimal=decimal,
        )
        tables.append((_aligned(schema, held, needs_target=aim is not None)[0], "test"))
    notes = [*target_note, *(note for each in found for note in each.notes)]
    return TableSource(schema, tables, notes, aim is not None, _identity(schema, tables))


def open_like(schema: TableSchema, source: object, *, is_labelled: bool) -> TableSource:
    """Open another table with the columns of a run, in any order.

    Args:
        schema: The columns of the run.
        source: As for `table`.
        is_labelled: True if the target is needed; otherwise it may be absent.

    Raises:
        SourceError: if a column is missing or a value does not fit its column.
    """
    place = _located(source)
    read = partial(raw_table, place, missing=frozenset(schema.missing_values), decimal=schema.decimal)
    try:
        raw = read(delimiter=schema.delimiter, header=not schema.is_positional)
        if len(raw.names) < min(len(schema.layout), 2):  # this file has another delimiter
            raw = read(delimiter=None, header=not schema.is_positional)
        aligned, notes = _aligned(schema, raw, needs_target=is_labelled)
        return TableSource(
            schema, [(aligned, None)], notes, is_labelled, _identity(schema, [(aligned, None)])
        )
    except SourceError as error:
        fault = _header_fault(schema, place)
        if fault is None:
            raise
        raise SourceError(fault) from error


def _header_fault(schema: TableSchema, place: object) -> str | None:
    """Return a sentence if a text file lacks the names of the schema's source, or has names that it lacks."""
    if not isinstance(place, Path) or not is_csv(place.name):
        return None
    missing = frozenset(schema.missing_values)
    with suppress(SourceError):
        raw = raw_table(
            place, delimiter=schema.delimiter, header=None, missing=missing, decimal=schema.decimal
        )
        if schema.is_positional and not raw.is_positional:
            return f"the first line of {place} has names, but the run learnt from a table without; remove it"
        first = {next(iter(column), "") for column in raw.columns if isinstance(column, TextColumn)}
        if raw.is_positional and not schema.is_positional and not first & set(schema.layout):
            names = ", ".join(map(repr, schema.layout[:_SHOWN])) + (", ..." if schema.layout[_SHOWN:] else "")
            return f"{place} has no line of names; add those of the run as the first line: {names}"
    return None


@dataclass(frozen=True)
class _FileIdentity:
    """The identity of tables in files: their contents and the schema."""

    paths: tuple[Path, ...]
    schema: str

    def __call__(self) -> str:
        return hashed(
            [
                "table",
                self.schema,
                *(ContentIdentity(path, path.parent, (path.name,))() for path in self.paths),
            ]
        )


def _identity(schema: TableSchema, tables: Sequence[tuple[RawTable, str | None]]) -> Any:
    """Return the identity, or a function that computes it from the contents of files."""
    described = str(schema.state())
    if all(Path(table.where).is_file() for table, _ in tables):
        return _FileIdentity(tuple(Path(table.where) for table, _ in tables), described)
    return hashed(["table", described, *(table.digest() for table, _ in tables)])


def _same(rows: EncodedRows) -> EncodedRows:
    return rows


def _located(source: object) -> object:
    """Return the path of an existing file, or a table in memory unchanged."""
    if not isinstance(source, str | Path):
        return source
    path = expanded(source)
    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; give a CSV or Parquet file")
    return path


def _texts(values: Iterable[str]) -> frozenset[str]:
    if isinstance(values, str):
        raise SourceError(f'missing_values is a list of texts; write ["{values}"]')
    return frozenset(["", *(each.strip() for each in values)])


def _position(table: RawTable, name: Name, field: str) -> int:
    """Return the position of a column. Raises SourceError if there is none."""
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise SourceError(f"{field} must be the name or the position of a column, got {name!r:.80}")
    if isinstance(name, str) and name.strip() in table.names:
        return table.names.index(name.strip())
    width = len(table.names)
    if re.fullmatch(r"-?\d+", str(name)) and -width <= int(name) < width:
        return int(name) % width
    shown = ", ".join(map(repr, table.names[:_SHOWN])) + (", ..." if width > _SHOWN else "")
    hint = (
        "; the first line was read as a row: set header = true if it has names" if table.is_positional else ""
    )
    raise SourceError(
        f"{table.where} has no column {name!r} for {field}; its {counted(width, 'column')} are {shown}{hint}"
    )


def _chosen(
    table: RawTable, roles: Mapping[str, int | None], features: Iterable[Name], ignore: Iterable[Name]
) -> list[int]:
    """Return the positions of the columns to read."""
    left_out = {at: role for role, at in roles.items() if at is not None}
    left_out |= {_position(table, each, "ignore"): "ignore" for each in ignore}
    named = [_position(table, each, "features") for each in features]
    for at in named:
        if at in left_out:
            raise SourceError(
                f"column {table.names[at]!r} is in features and in {left_out[at]}; remove it from one"
            )
    chosen = sorted(set(named)) or [at for at in range(len(table.names)) if at not in left_out]
    if not chosen:
        raise SourceError(f"{table.where} has no column to learn from; remove columns from ignore")
    return chosen


def _aligned(schema: TableSchema, table: RawTable, *, needs_target: bool) -> tuple[RawTable, list[str]]:
    """Return a table with the names of a schema's source, and a note on columns that are not read.

    Columns without names are matched by position; the target may be absent. Raises SourceError for missing
    columns.
    """
    names = table.names
    if table.is_positional:
        without_target = tuple(name for name in schema.layout if name != schema.target)
        layouts = [each for each in (schema.layout, without_target) if len(each) == len(names)]
        if not layouts:
            raise SourceError(
                f"{table.where} has {counted(len(names), 'column')} without names; the run learnt from a "
                f"table of {len(schema.layout):,} columns ({len(without_target):,} without the target); give "
                "these, or a frame or mapping with the names of its columns"
            )
        names = layouts[0]
    wanted = [column.name for column in schema.columns]
    wanted += [] if schema.sequence is None else [schema.sequence]
    if needs_target and schema.target is not None:
        wanted.append(schema.target)
    absent = [name for name in wanted if name not in names]
    if absent:
        shown = ", ".join(map(repr, absent[:_SHOWN])) + (", ..." if len(absent) > _SHOWN else "")
        there = ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
        cases = {name.casefold() for name in names}
        remedy = "add the missing columns"
        if all(name.casefold() in cases for name in absent):
            remedy = "spell the names as the run does, capitals included"
        raise SourceError(
            f"{table.where} lacks {counted(len(absent), 'column')} of the run: {shown}; it has {there}; "
            f"{remedy}"
        )
    unknown = [name for name in names if name not in schema.layout]
    note = f"columns that the run does not know are not read: {', '.join(map(repr, unknown[:_SHOWN]))}"
    aligned = RawTable(table.where, names, table.columns, table.rows, table.lines, table.is_positional)
    return aligned, [note] if unknown else []
