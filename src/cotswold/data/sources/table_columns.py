"""The kinds of a table's columns, and their values as numbers.

Knows: how values show that a column has numbers, categories or dates. Does not know: files, splits, networks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.raw_tables import DATES, EXACT_MAX, RawTable, text_of
from cotswold.data.preprocessing.table_schema import TableColumn, TableSchema
from cotswold.data.sources.table_values import (
    Reading,
    as_categories,
    date_error,
    loses_digits,
    order_of,
    refuse_dates_and_separators,
)
from cotswold.errors import SourceError

_DAY_FIRST, _DAY_LAST, _MONTHS, _DAYS = 19_000_101, 21_001_231, 12, 31
"""Dates as integers, such as 20240131."""
CATEGORIES_MAX = 10_000
"""Maximum number of categories of a column; each becomes a feature."""
_ROWS_MIN = 20
"""Number of rows below which distinct values do not show that a column has identifiers."""


@dataclass(frozen=True)
class FoundColumn:
    """A column that a network can read, and sentences about it for users."""

    column: TableColumn
    notes: list[str] = field(default_factory=list)


def find_column(table: RawTable, at: int, reading: Reading, is_category: bool) -> FoundColumn:
    """Decide whether a column has numbers or categories.

    Args:
        table: The table.
        at: Number of the column.
        reading: How texts become values.
        is_category: True to use numbers as categories.

    Raises:
        SourceError: if the column has dates, texts among numbers, too many categories, or no value.
    """
    name, where = table.names[at], f"{table.where}, column {table.names[at]!r}"
    numbers_only = None if is_category else numbers_of(table, at, reading)
    if numbers_only is not None and not np.isnan(numbers_only).all():
        return FoundColumn(TableColumn(name), _number_notes(name, numbers_only))
    own = reading.of(table.columns[at])
    counts = Counter(column_texts(table, at))
    for text in list(filter(own.is_missing, counts)):
        del counts[text]
    if not counts:
        raise SourceError(f'{where} has no value; ignore it: ignore = ["{name}"]')
    constant = (
        [f"column {name!r} has one value in all rows ({next(iter(counts))})"] if len(counts) == 1 else []
    )
    if not is_category:
        refuse_unless_categories(table, at, counts, reading)
    if len(counts) > CATEGORIES_MAX:
        raise SourceError(
            f"{where} has {len(counts):,} categories, of which each would be a feature; at most "
            f'{CATEGORIES_MAX:,} are possible: ignore it (ignore = ["{name}"]), or group its values'
        )
    if len(counts) == table.rows >= _ROWS_MIN:
        constant = [
            f"column {name!r} has another category in each row, like an identifier, so nothing can be learnt "
            f'from it: ignore = ["{name}"]'
        ]
    return FoundColumn(TableColumn(name, tuple(sorted(counts, key=order_of))), constant)


def refuse_unless_categories(
    table: RawTable, at: int, distinct: Collection[str], reading: Reading, is_target: bool = False
) -> None:
    """Raise SourceError for a text among numbers, for dates, and for numbers with separators.

    Args:
        table: The table.
        at: Number of the column, whose values are not all numbers.
        distinct: The different values of the column that are not missing.
        reading: How texts become values.
        is_target: True for the target.
    """
    others = [each for each in distinct if not reading.is_number(each)]
    if len(others) < len(distinct) / 2:
        _refuse_texts(table, at, others, is_target)
    name = table.names[at]
    where = f"{table.where}, {'target' if is_target else 'column'} {name!r}"
    refuse_dates_and_separators(where, name, distinct, reading, is_target)


def number_values(table: RawTable, at: int, reading: Reading, is_target: bool = False) -> NDArray[np.float64]:
    """Return the numbers of a column, float64 (row,); NaN for missing values.

    Raises SourceError for a text, an infinite number, or an integer that float64 does not represent exactly.

    Args:
        table: The table.
        at: Number of the column.
        reading: How texts become values.
        is_target: True for the target.
    """
    found = numbers_of(table, at, reading, is_target)
    if found is None:
        others = {each for each in column_texts(table, at) if not reading.is_missing(each)}
        _refuse_texts(table, at, [each for each in others if not reading.is_number(each)], is_target)
    assert found is not None, "a text among numbers is refused"
    return found


def numbers_of(
    table: RawTable, at: int, reading: Reading, is_target: bool = False
) -> NDArray[np.float64] | None:
    """Return the numbers of a column, NaN for missing values; None if it has other texts.

    Raises SourceError as `number_values`, except for a text.

    Args:
        table: The table.
        at: Number of the column.
        reading: How texts become values.
        is_target: True for the target.
    """
    values = table.columns[at]
    if isinstance(values, np.ndarray):
        wrong = np.flatnonzero(np.isinf(values))
        if len(wrong):
            raise SourceError(
                f"{table.place(int(wrong[0]))}: column {table.names[at]!r} has {values[wrong[0]]}; numbers "
                "must be finite: correct or remove the row"
            )
        found = values
    else:
        try:
            parsed = _parsed(column_texts(table, at), reading)
            found = np.fromiter(parsed, np.float64, table.rows)
        except ValueError:
            return None
        _refuse_lost_digits(table, at, found, reading, is_target)
    missing = reading.missing_numbers
    return np.where(np.isin(found, missing), np.nan, found) if missing else found


def _parsed(texts: Iterable[str], reading: Reading) -> Iterator[float]:
    """Yield numbers, NaN for missing values. Raises ValueError for other texts."""
    missing = reading.missing
    for text in texts:
        if text in missing:
            yield math.nan
            continue
        decimal = reading.number(text)
        number = float(decimal)
        if "_" in decimal or not math.isfinite(number):
            raise ValueError(text)
        yield number


def _refuse_lost_digits(
    table: RawTable, at: int, numbers: NDArray[np.float64], reading: Reading, is_target: bool
) -> None:
    if not (np.abs(numbers) >= EXACT_MAX).any():
        return
    for row, text in enumerate(column_texts(table, at)):
        if loses_digits(text) and not reading.is_missing(text):
            name = table.names[at]
            raise SourceError(
                f"{table.place(row)}: column {name!r} has integers beyond 2^53 ({text!r}), whose last digits "
                f'would be lost; ignore identifiers: ignore = ["{name}"]; or use them as categories: '
                f"{as_categories(name, is_target)}"
            )


def sequence_lengths(schema: TableSchema, tables: Sequence[RawTable]) -> list[int] | None:
    """Return the number of rows of each sequence of all tables; None if rows are independent.

    Raises SourceError if the rows of a sequence do not follow each other.
    """
    if schema.sequence is None:
        return None
    lengths: list[int] = []
    for table in tables:
        seen: set[str] = set()
        last: str | None = None
        for row, name in enumerate(column_texts(table, table.names.index(schema.sequence))):
            if name == last:
                lengths[-1] += 1
                continue
            if name in seen:
                raise SourceError(
                    f"{table.place(row)}: the sequence {name!r} continues after another one; sort the rows "
                    f"by {schema.sequence!r}"
                )
            seen.add(name)
            lengths.append(1)
            last = name
    return lengths


def column_texts(table: RawTable, at: int) -> Collection[str]:
    """Return the values of a column as texts, "" for missing numbers. Raises SourceError for other values."""
    values = table.columns[at]
    if isinstance(values, str):
        name, where = table.names[at], f"{table.where}, column {table.names[at]!r}"
        if values == DATES:
            raise date_error(where, name, "")
        raise SourceError(f'{where} has {values}; save numbers or texts, or ignore it: ignore = ["{name}"]')
    if isinstance(values, np.ndarray):
        return ["" if np.isnan(value) else text_of(value) for value in values.tolist()]
    return values


def _refuse_texts(table: RawTable, at: int, strange: list[str], is_target: bool) -> None:
    """Raise SourceError for texts among numbers; the first is named with its place."""
    wrong, name = set(strange), table.names[at]
    row, text = next((row, text) for row, text in enumerate(column_texts(table, at)) if text in wrong)
    raise SourceError(
        f"{table.place(row)}: column {name!r} has {text!r} among numbers; correct it, add it to "
        "missing_values if it means a missing value, or use the values as categories: "
        f"{as_categories(name, is_target)}"
    )


def _number_notes(name: str, values: NDArray[np.float64]) -> list[str]:
    """Return sentences on numbers that are all equal, or count the rows."""
    present = values[~np.isnan(values)]
    if present.min() == present.max():
        return [f"column {name!r} has one value in all rows ({present[0]:g})"]
    if bool((present >= _DAY_FIRST).all() and (present <= _DAY_LAST).all()) and bool(
        ((present % 10_000 // 100 - 1) % 100 < _MONTHS).all() and ((present - 1) % 100 < _DAYS).all()
    ):
        return [
            f"column {name!r} is read as numbers, but looks like dates ({present[0]:.0f}); add the days "
            f'since the first date, and ignore this one: ignore = ["{name}"]'
        ]
    if len(values) >= _ROWS_MIN and bool((np.diff(values) == 1).all()):
        return [f'column {name!r} numbers the rows, so nothing can be learnt from it: ignore = ["{name}"]']
    return []
