"""The column of a table that a network predicts: classes by name, or numbers.

Knows: the values of the column. Does not know: the other columns, files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.raw_tables import RawTable
from cotswold.data.preprocessing.table_schema import TableSchema
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.table_columns import (
    column_texts,
    number_values,
    numbers_of,
    refuse_unless_categories,
)
from cotswold.data.sources.table_values import Reading, order_of
from cotswold.errors import SourceError
from cotswold.phrases import counted

_CLASSES_MAX = 20
"""Number of distinct integers up to which a target is taken as classes."""


def find_target(
    table: RawTable, at: int, reading: Reading, kind: Literal["auto", "class", "number"]
) -> tuple[Literal["class", "number"], list[str]]:
    """Decide whether a column has classes or numbers; return a sentence for users if values do not show it.

    Raises SourceError for a missing or unusable value.
    """
    if kind == "class":
        _present(table, at, reading)
        return "class", []
    if kind == "number":
        _numbers(table, at, reading)
        return "number", []
    name, numbers = table.names[at], numbers_of(table, at, reading, is_target=True)
    if numbers is None:
        distinct = set(_present(table, at, reading))
        refuse_unless_categories(table, at, distinct, reading.of(table.columns[at]), is_target=True)
        return "class", []
    _refuse_missing(table, at, np.flatnonzero(np.isnan(numbers)).tolist())
    values = np.unique(numbers)
    if len(values) <= _CLASSES_MAX and bool((values == np.floor(values)).all()):
        return "class", [
            f"the integers of the target {name!r} are taken as {counted(len(values), 'class')}; for "
            'regression set target_kind = "number"'
        ]
    return "number", [
        f'the target {name!r} is taken as numbers (regression); for classes set target_kind = "class"'
    ]


def target_labels(schema: TableSchema, tables: Sequence[RawTable]) -> tuple[LabelArray, tuple[str, ...]]:
    """Return the labels of all tables, and notes.

    Raises SourceError for a missing value.
    """
    assert schema.target is not None, "there is a target"
    reading = Reading(frozenset(schema.missing_values), schema.decimal)
    places = [table.names.index(schema.target) for table in tables]
    pairs = list(zip(tables, places, strict=True))
    if schema.target_kind == "number":
        numbers = [_numbers(table, at, reading) for table, at in pairs]
        return LabelArray(np.concatenate(numbers).astype(np.float32)[:, None]), ()
    texts = [_present(table, at, reading) for table, at in pairs]
    known = set(texts[0])
    notes: list[str] = []
    for number, (table, own) in enumerate(zip(tables[1:], texts[1:], strict=True), 1):
        strange = set(own) - known
        if strange == set(own) and all(each.endswith(".") and each[:-1] in known for each in strange):
            texts[number] = [each[:-1] for each in own]
            notes.append(f"the classes of {table.short_name} end in a full stop, which is removed")
        elif strange:
            raise SourceError(
                f"{table.where}: target {schema.target!r} has the class {sorted(strange)[0]!r}, which "
                f"{tables[0].where} lacks; it has {', '.join(map(repr, sorted(known)[:5]))}"
            )
    classes = tuple(sorted(known, key=order_of))
    number_of = {name: number for number, name in enumerate(classes)}
    labels: NDArray[np.int64] = np.array([number_of[each] for own in texts for each in own], np.int64)
    return LabelArray(labels, classes), tuple(notes)


def _numbers(table: RawTable, at: int, reading: Reading) -> NDArray[np.float64]:
    """Return the values of a column as numbers. Raises SourceError for a missing or another value."""
    found = number_values(table, at, reading, is_target=True)
    _refuse_missing(table, at, np.flatnonzero(np.isnan(found)).tolist())
    return found


def _present(table: RawTable, at: int, reading: Reading) -> Collection[str]:
    """Return the values of a column as texts. Raises SourceError for a missing value."""
    texts, own = column_texts(table, at), reading.of(table.columns[at])
    absent = set(filter(own.is_missing, set(texts)))
    if absent:
        _refuse_missing(table, at, [row for row, text in enumerate(texts) if text in absent])
    return texts


def _refuse_missing(table: RawTable, at: int, rows: Sequence[int]) -> None:
    """Raise SourceError if there are rows without a target."""
    if rows:
        text = next(islice(column_texts(table, at), rows[0], None))
        hint = f"; if {text!r} is a class of its own, set missing_values without it" if text else ""
        raise SourceError(
            f"{table.place(rows[0])}: the target {table.names[at]!r} is missing (in "
            f"{counted(len(rows), 'row')} of {table.rows:,}); remove the rows without a target, or correct "
            f"them{hint}"
        )
