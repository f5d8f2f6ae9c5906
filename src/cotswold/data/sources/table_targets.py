"""The column of a table that a network predicts: classes by name, or numbers.

Knows: the values of the column. Does not know: the other columns, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.csv_files import is_number
from cotswold.data.formats.raw_tables import RawTable
from cotswold.data.preprocessing.table_schema import TableSchema
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.table_columns import (
    Reading,
    column_texts,
    number_values,
    order_of,
    refuse_dates_and_separators,
)
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
    texts = _present(table, at, reading)
    distinct, reading = set(texts), reading.of(table.columns[at])
    if kind == "number":
        number_values(table, at, reading)
        return "number", []
    numbers = [reading.number(each) for each in distinct if is_number(reading.number(each))]
    if kind == "auto" and len(numbers) <= len(distinct) / 2:
        where, name = f"{table.where}, target {table.names[at]!r}", table.names[at]
        refuse_dates_and_separators(where, name, sorted(distinct), reading)
    if kind == "class" or not numbers:
        return "class", []
    if len(numbers) < len(distinct):
        number_values(table, at, reading)  # raises an error if numbers prevail
    name = table.names[at]
    if len(distinct) <= _CLASSES_MAX and all(float(each).is_integer() for each in numbers):
        return "class", [
            f"the integers of the target {name!r} are taken as {counted(len(distinct), 'class')}; for "
            "regression "
            'set target_kind = "number"'
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
    texts = [_present(table, at, reading) for table, at in pairs]
    if schema.target_kind == "number":
        numbers = [number_values(table, at, reading) for table, at in pairs]
        return LabelArray(np.concatenate(numbers).astype(np.float32)[:, None]), ()
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


def _present(table: RawTable, at: int, reading: Reading) -> list[str]:
    """Return the values of a column as texts. Raises SourceError for a missing value."""
    texts = column_texts(table, at)
    own, numbers = reading.of(table.columns[at]), reading.missing_numbers

    def is_missing(text: str) -> bool:
        number = own.number(text)
        return text in reading.missing or (bool(numbers) and is_number(number) and float(number) in numbers)

    row = next((row for row, text in enumerate(texts) if is_missing(text)), None)
    if row is not None:
        raise SourceError(
            f"{table.place(row)}: the target {table.names[at]!r} is missing; remove the rows without a "
            "target, or "
            "correct them"
        )
    return texts
