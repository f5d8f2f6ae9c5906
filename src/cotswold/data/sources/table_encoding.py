"""Rows of a table as vectors: numbers, and a feature for each category of a schema.

Knows: new categories, missing values. Does not know: the choice of columns, files, statistics.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.raw_tables import RawTable
from cotswold.data.preprocessing.table_schema import TableColumn, TableSchema
from cotswold.data.sources.table_columns import column_texts, number_values
from cotswold.data.sources.table_values import Reading, key_of
from cotswold.errors import SourceError
from cotswold.phrases import counted

_MISSING, _NEW = -1, -2
_SHOWN, _CATEGORIES_SHOWN = 5, 3
_ROWS_OF_A_MISTAKE = 20
"""Rows without any known category of a column from which the table is probably another one."""


def category_codes(
    table: RawTable, at: int, reading: Reading, categories: tuple[str, ...]
) -> tuple[NDArray[np.int32], Counter[str]]:
    """Return the position of each row's category, int32 (row,), and the new categories with their rows.

    A missing value is -1, a new category -2.
    """
    own, counts = reading.of(table.columns[at]), Counter(column_texts(table, at))
    spellings: dict[object, int] = {}
    for number, category in enumerate(categories):
        spellings[key_of(category)] = _NEW if key_of(category) in spellings else number
    code_of = {
        text: _MISSING if own.is_missing(text) else spellings.get(key_of(text), _NEW) for text in counts
    }
    code_of |= {category: number for number, category in enumerate(categories)}
    new = Counter({text: count for text, count in counts.items() if code_of[text] == _NEW})
    codes = np.fromiter(map(code_of.__getitem__, column_texts(table, at)), np.int32, table.rows)
    return codes, new


class EncodedRows:
    """Rows of a table as vectors, encoded on access; NaN for missing values.

    Args:
        schema: The columns.
        values: Numbers, float64 (row,), or positions of categories, int32 (row,), of each column.
    """

    def __init__(self, schema: TableSchema, values: list[NDArray[Any]]) -> None:
        self._features, self._values = schema.features, values
        widths = [column.features for column in schema.columns]
        self._starts = np.cumsum([0, *widths]).tolist()
        self._categories = [column.categories is not None for column in schema.columns]

    def __getitem__(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return rows, float64 (row, feature)."""
        found = np.zeros((len(indices), self._features))
        for number, values in enumerate(self._values):
            start, stop, chosen = self._starts[number], self._starts[number + 1], values[indices]
            if not self._categories[number]:
                found[:, start] = chosen
                continue
            known = np.flatnonzero(chosen >= 0)
            found[known, start + chosen[known]] = 1
            found[chosen == _MISSING, start:stop] = np.nan
        return found

    def missing(self) -> list[NDArray[np.int64]]:
        """Return the rows of each column that have no value."""
        return [
            np.flatnonzero(values == _MISSING if is_category else np.isnan(values))
            for values, is_category in zip(self._values, self._categories, strict=True)
        ]


def encode(schema: TableSchema, table: RawTable) -> tuple[EncodedRows, list[str]]:
    """Return the rows of a table, and notes on new categories and missing values.

    Raises SourceError for refused values.
    """
    reading, notes = Reading(frozenset(schema.missing_values), schema.decimal), []
    values: list[NDArray[Any]] = []
    for column in schema.columns:
        at = table.names.index(column.name)
        if column.categories is None:
            values.append(number_values(table, at, reading))
            continue
        codes, new = category_codes(table, at, reading, column.categories)
        if new:
            _refuse_new(schema, table, column, codes, new)
            notes.append(_new_categories_note(column.name, new))
        values.append(codes)
    rows = EncodedRows(schema, values)
    gaps = rows.missing()
    for column, absent in zip(schema.columns, gaps, strict=True):
        if len(absent) and schema.missing == "refuse":
            row = int(absent[0])
            text = next(islice(column_texts(table, table.names.index(column.name)), row, None))
            hint = f"; if {text!r} is a category of its own, set missing_values without it" if text else ""
            raise SourceError(
                f"{table.place(row)}: column {column.name!r} has a missing value (in "
                f'{counted(len(absent), "row")} of {table.rows:,}); set missing = "impute" for training to '
                f"replace them by the median or the most frequent category, or ignore the column{hint}"
            )
    with_gaps = {
        column.name: len(absent) for column, absent in zip(schema.columns, gaps, strict=True) if len(absent)
    }
    if with_gaps:
        shown = ", ".join(f"{name!r} ({count:,})" for name, count in list(with_gaps.items())[:_SHOWN])
        more = ", ..." if len(with_gaps) > _SHOWN else ""
        where = counted(len(with_gaps), "column")
        notes.append(f"missing values of {table.short_name} are imputed in {where}: {shown}{more}")
    return rows, notes


def _refuse_new(
    schema: TableSchema, table: RawTable, column: TableColumn, codes: NDArray[np.int32], new: Counter[str]
) -> None:
    """Raise SourceError for a new category if the schema says so, or if many rows have no known one."""
    if schema.new_categories == "refuse":
        raise SourceError(
            f"{table.where}: column {column.name!r} has {next(iter(new))!r}, a category that the training "
            'table lacks; remove its rows, or train with new_categories = "zeros"'
        )
    rows = sum(new.values())
    if rows >= _ROWS_OF_A_MISTAKE and bool((codes < 0).all()):
        known = column.categories or ()
        raise SourceError(
            f"{table.where}: column {column.name!r} has no category of the training table: "
            f"{counted(rows, 'row')} have {_listed(list(new))}, and the training table has "
            f"{_listed(list(known))}; give the table with the values of training, or train again without "
            f'the column: ignore = ["{column.name}"]'
        )


def _listed(texts: list[str]) -> str:
    return ", ".join(map(repr, texts[:_CATEGORIES_SHOWN])) + (
        ", ..." if len(texts) > _CATEGORIES_SHOWN else ""
    )


def _new_categories_note(name: str, new: Counter[str]) -> str:
    """Return a sentence on categories that training did not have."""
    noun = "category" if len(new) == 1 else "categories"
    rows, shown = counted(sum(new.values()), "row"), _listed([each for each, _ in new.most_common()])
    return f"column {name!r} has {len(new):,} new {noun} in {rows} ({shown}), read as none of the known ones"
