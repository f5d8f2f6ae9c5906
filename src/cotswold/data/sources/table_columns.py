"""The kinds of a table's columns, and their values as numbers.

Knows: how values show that a column has numbers, categories or dates. Does not know: files, splits, networks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.csv_files import is_number
from cotswold.data.formats.raw_tables import DATES, RawTable, text_of
from cotswold.data.preprocessing.table_schema import TableColumn, TableSchema
from cotswold.errors import SourceError
from cotswold.phrases import counted

CATEGORIES_MAX = 10_000
"""Maximum number of categories of a column; each becomes a feature."""
_MISSING, _NEW = -1, -2
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]+\d{1,2}:\d{2}.*)?")
_COMMA = re.compile(r"[+-]?\d+,\d+")
_COMMA_TO_POINT = {ord(","): ".", ord("."): "_"}
_SEPARATED = {
    mark: re.compile(
        rf"[+-]?\s?[$\u20ac\u00a3]?\s?(\d+([{thousands}'\u2019 \u00a0\u202f]\d{{3}})*(\{mark}\d+)?|"
        r"\d{1,3}(\.\d{3})+,\d+)\s?[%$\u20ac\u00a3]?"
    )
    for mark, thousands in ((".", ","), (",", "."))
}
"""Numbers with separators of thousands, a currency or %, by the decimal mark."""
_ROWS_MIN = 20
"""Number of rows below which distinct values do not show that a column has identifiers."""
_SHOWN = 3


@dataclass(frozen=True)
class Reading:
    """How texts become values.

    Args:
        missing: Texts that mean a missing value.
        decimal: Decimal mark, "." or ",".
    """

    missing: frozenset[str]
    decimal: str = "."

    def number(self, text: str) -> str:
        """Return a text with a point as its decimal mark; with ``decimal`` "," a point makes it no number."""
        return text.translate(_COMMA_TO_POINT) if self.decimal == "," else text

    @cached_property
    def missing_numbers(self) -> list[float]:
        """The numbers that mean a missing value."""
        return [float(text) for text in map(self.number, self.missing) if is_number(text)]

    def of(self, values: object) -> Reading:
        """Return the reading of a column of numbers, whose texts have a point, or of one of texts."""
        return replace(self, decimal=".") if isinstance(values, np.ndarray) else self


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
    numbers_only = None if is_category else _numbers_of(table, at, reading)
    if numbers_only is not None and not np.isnan(numbers_only).all():
        return FoundColumn(TableColumn(name), _number_notes(name, numbers_only))
    counts = _counts(table, at, reading)
    if not counts:
        raise SourceError(f'{where} has no value; ignore it: ignore = ["{name}"]')
    constant = (
        [f"column {name!r} has one value in all rows ({next(iter(counts))})"] if len(counts) == 1 else []
    )
    if not is_category:
        others = [each for each in counts if not is_number(reading.number(each))]
        if len(others) < len(counts) / 2:
            _refuse_texts(table, at, others)
        refuse_dates_and_separators(where, name, list(counts), reading)
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


def number_values(table: RawTable, at: int, reading: Reading) -> NDArray[np.float64]:
    """Return the numbers of a column, float64 (row,); NaN for missing values.

    Raises SourceError for a text or an infinite number.
    """
    found = _numbers_of(table, at, reading)
    if found is None:
        others = set(column_texts(table, at)) - reading.missing
        _refuse_texts(table, at, [text for text in others if not is_number(reading.number(text))])
    assert found is not None, "a text among numbers is refused"
    return found


def _numbers_of(table: RawTable, at: int, reading: Reading) -> NDArray[np.float64] | None:
    """Return the numbers of a column, NaN for missing values; None if it has other texts.

    Raises SourceError for an infinite number of an array.
    """
    values = table.columns[at]
    if isinstance(values, np.ndarray):
        wrong = np.flatnonzero(np.isinf(values))
        if len(wrong):
            raise SourceError(
                f"{table.place(int(wrong[0]))}: column {table.names[at]!r} has {values[wrong[0]]}; numbers "
                "must be finite: correct or remove the row"
            )
        return _without(values, reading)
    texts = column_texts(table, at)
    if reading.decimal == ",":
        texts = [reading.number(text) for text in texts]
    missing = reading.missing
    try:
        found = np.array([np.nan if text in missing else float(text) for text in texts])
    except ValueError:
        return None
    is_exact = "_" not in "".join(texts) and not np.isinf(found).any()
    unread = int(np.isnan(found).sum()) - sum(text in missing for text in texts)
    return _without(found, reading) if is_exact and not unread else None


def _without(numbers: NDArray[np.float64], reading: Reading) -> NDArray[np.float64]:
    """Replace the numbers that mean a missing value by NaN."""
    found = reading.missing_numbers
    return np.where(np.isin(numbers, found), np.nan, numbers) if found else numbers


def category_codes(
    table: RawTable, at: int, reading: Reading, categories: tuple[str, ...]
) -> tuple[NDArray[np.int32], Counter[str]]:
    """Return the position of each row's category, int32 (row,), and the new categories with their rows.

    A missing value is -1, a new category -2.
    """
    texts = column_texts(table, at)
    code_of = dict.fromkeys(reading.missing, _MISSING)
    numbers: dict[object, int] = {}
    for number, category in enumerate(categories):
        numbers[_key(category)] = _NEW if _key(category) in numbers else number
    code_of |= {text: numbers.get(_key(text), _NEW) for text in set(texts) if text not in code_of}
    code_of = {text: code for text, code in code_of.items() if code != _NEW}
    code_of |= {category: number for number, category in enumerate(categories)}
    new = Counter(text for text in texts if text not in code_of)
    return np.array([code_of.get(text, _NEW) for text in texts], np.int32), new


def _key(text: str) -> object:
    """Return what the spellings of one value have in common: "01234" and "1234", "true" and "True"."""
    if is_number(text):
        return float(text)
    return text.lower() if text.lower() in ("true", "false") else text


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


def sequence_lengths(schema: TableSchema, tables: Sequence[RawTable]) -> list[int] | None:
    """Return the number of rows of each sequence of all tables; None if rows are independent.

    Raises SourceError if the rows of a sequence do not follow each other.
    """
    if schema.sequence is None:
        return None
    lengths: list[int] = []
    for table in tables:
        names = column_texts(table, table.names.index(schema.sequence))
        seen: set[str] = set()
        for row, name in enumerate(names):
            if row and name == names[row - 1]:
                lengths[-1] += 1
                continue
            if name in seen:
                raise SourceError(
                    f"{table.place(row)}: the sequence {name!r} continues after another one; sort the rows "
                    "by "
                    f"{schema.sequence!r}"
                )
            seen.add(name)
            lengths.append(1)
    return lengths


def new_categories_note(name: str, new: Counter[str]) -> str:
    """Return a sentence on categories that training did not have."""
    shown = ", ".join(repr(each) for each, _ in new.most_common(_SHOWN)) + (
        ", ..." if len(new) > _SHOWN else ""
    )
    noun = "category" if len(new) == 1 else "categories"
    rows = counted(sum(new.values()), "row")
    return f"column {name!r} has {len(new):,} new {noun} in {rows} ({shown}), read as none of the known ones"


def _counts(table: RawTable, at: int, reading: Reading) -> Counter[str]:
    """Return the number of rows of each value that is not missing."""
    return Counter(text for text in column_texts(table, at) if text not in reading.missing)


def column_texts(table: RawTable, at: int) -> list[str]:
    """Return the values of a column as texts, "" for missing numbers. Raises SourceError for other values."""
    values = table.columns[at]
    if isinstance(values, str):
        name, where = table.names[at], f"{table.where}, column {table.names[at]!r}"
        if values == DATES:
            raise _date_error(where, name, "")
        raise SourceError(f'{where} has {values}; save numbers or texts, or ignore it: ignore = ["{name}"]')
    if isinstance(values, np.ndarray):
        return ["" if np.isnan(value) else text_of(value) for value in values.tolist()]
    return values


def _refuse_texts(table: RawTable, at: int, strange: list[str]) -> None:
    """Raise SourceError for texts among numbers; the first is named with its place."""
    wrong = set(strange)
    row = next(row for row, text in enumerate(column_texts(table, at)) if text in wrong)
    text, name = column_texts(table, at)[row], table.names[at]
    raise SourceError(
        f"{table.place(row)}: column {name!r} has {text!r} among numbers; correct it, add it to "
        "missing_values if "
        f'it means a missing value, or use the values as categories: categorical = ["{name}"]'
    )


def refuse_dates_and_separators(where: str, name: str, values: list[str], reading: Reading) -> None:
    """Raise SourceError for dates, and for numbers with a comma or with separators, a currency or %."""
    if 2 * sum(_DATE.fullmatch(each) is not None for each in values) > len(values):
        raise _date_error(where, name, f" ({values[0]!r})")
    commas = [each for each in values if _COMMA.fullmatch(each)]
    if commas and all(_COMMA.fullmatch(each) or is_number(each) for each in values):
        raise SourceError(
            f'{where} has numbers with a comma ({commas[0]!r}); set decimal = ",", or remove the '
            "separators of "
            "thousands"
        )
    pattern = _SEPARATED[reading.decimal]
    separated = [each for each in values if pattern.fullmatch(each) and not is_number(reading.number(each))]
    numbers = len(separated) + sum(is_number(reading.number(each)) for each in values)
    if separated and 2 * numbers > len(values):
        raise SourceError(
            f"{where} has numbers with separators of thousands, a currency or % ({separated[0]!r}); write "
            f'them without, or use the values as categories: categorical = ["{name}"], or for a target '
            'target_kind = "class"'
        )


def _date_error(where: str, name: str, example: str) -> SourceError:
    return SourceError(
        f"{where} has dates or times{example}, which have no natural scale; add columns of numbers, such "
        "as the "
        f'days since the first date or the month, and ignore this one: ignore = ["{name}"]'
    )


def _number_notes(name: str, values: NDArray[np.float64]) -> list[str]:
    """Return sentences on numbers that are all equal, or count the rows."""
    present = values[~np.isnan(values)]
    if present.min() == present.max():
        return [f"column {name!r} has one value in all rows ({present[0]:g})"]
    if len(values) >= _ROWS_MIN and bool((np.diff(values) == 1).all()):
        return [f'column {name!r} numbers the rows, so nothing can be learnt from it: ignore = ["{name}"]']
    return []


def order_of(text: str) -> tuple[bool, float, str]:
    """Return the key by which categories and classes are sorted: numbers first, by value."""
    return (False, float(text), text) if is_number(text) else (True, 0.0, text)
