"""The meaning of a table's texts: numbers, missing values, dates, numbers with separators.

Knows: spellings of one value. Does not know: files, columns, what a network reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cotswold.data.formats.csv_files import is_number
from cotswold.data.formats.raw_tables import is_rounded
from cotswold.errors import SourceError

_COMMA = re.compile(r"[+-]?\d+,\d+")
_COMMA_TO_POINT = {ord(","): ".", ord("."): "_"}
_INTEGER = re.compile(r"([+-]?\d+)(\.0*)?")
_SEPARATED = {
    mark: re.compile(
        rf"[+\-\u2212]?\s?[$\u20ac\u00a3]?\s?(\d+([{thousands}'\u2019 \u00a0\u202f]\d{{3}})*(\{mark}\d+)?|"
        r"\d{1,3}(\.\d{3})+,\d+)\s?[%$\u20ac\u00a3]?"
    )
    for mark, thousands in ((".", ","), (",", "."))
}
"""Numbers with separators of thousands, a currency, % or a long minus sign, by the decimal mark."""
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"\d{1,2}(st|nd|rd|th|\.)?"
_TIME = r"\d{1,2}:[0-5]\d(:[0-5]\d([.,]\d+)?)?(\s?[ap]\.?m\.?)?"
_DATE = re.compile(
    rf"((mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,?\s+)?("
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"  # 2024-01-31, 31/01/2024
    r"|\d{4}-(0[1-9]|1[0-2])|\d{4}-?w\d{2}(-?\d)?"  # 2024-01, 2024-W05
    rf"|{_DAY}[\s/-]*{_MONTH},?[\s/-]*\d{{2,4}}|{_MONTH}[\s-]{_DAY},?[\s-]\d{{4}}|{_MONTH}[\s-]\d{{4}}"
    rf")([t\s,]+\d{{1,2}}:\d{{2}}.*)?|\d{{8}}t\d{{4,6}}.*|{_TIME}|\d{{4}}\u5e74\d{{1,2}}\u6708(\d{{1,2}}\u65e5)?",
    re.IGNORECASE,
)
"""Dates with or without a time, months of a year, and times."""


@dataclass(frozen=True)
class Reading:
    """Rules by which texts become values.

    Args:
        missing: Texts that mean a missing value.
        decimal: Decimal mark, "." or ",".
    """

    missing: frozenset[str]
    decimal: str = "."

    def number(self, text: str) -> str:
        """Return a text with a point as its decimal mark; with ``decimal`` "," a point makes it no number."""
        return text.translate(_COMMA_TO_POINT) if self.decimal == "," else text

    def is_number(self, text: str) -> bool:
        """True for a finite number."""
        return is_number(self.number(text))

    def is_missing(self, text: str) -> bool:
        """True for a text that means a missing value, and for another spelling of such a number."""
        if text in self.missing or not self.missing_numbers:
            return text in self.missing
        return self.is_number(text) and float(self.number(text)) in self.missing_numbers

    @cached_property
    def missing_numbers(self) -> list[float]:
        """The numbers that mean a missing value."""
        return [float(text) for text in map(self.number, self.missing) if is_number(text)]

    def of(self, values: object) -> Reading:
        """Return the reading of a column of numbers, whose texts have a point, or of one of texts."""
        return replace(self, decimal=".") if isinstance(values, np.ndarray) else self


def loses_digits(text: str) -> bool:
    """True for an integer that float64 does not represent exactly.

    >>> loses_digits("9007199254740993"), loses_digits("9007199254740992"), loses_digits("0.1")
    (True, False, False)
    """
    found = _INTEGER.fullmatch(text)
    return found is not None and is_rounded(int(found[1]))


def key_of(text: str) -> object:
    """Return what the spellings of one value have in common: "01234" and "1234", "true" and "True"."""
    if loses_digits(text):
        return int(text.partition(".")[0])
    if is_number(text):
        return float(text)
    return text.lower() if text.lower() in ("true", "false") else text


def order_of(text: str) -> tuple[bool, float, str]:
    """Return the key by which categories and classes are sorted: numbers first, by value."""
    return (False, float(text), text) if is_number(text) else (True, 0.0, text)


def as_categories(name: str, is_target: bool) -> str:
    """Return the setting that takes the values of a column as categories, or those of a target as classes."""
    return 'target_kind = "class"' if is_target else f'categorical = ["{name}"]'


def date_error(where: str, name: str, example: str, is_target: bool = False) -> SourceError:
    """Return the error for dates.

    Args:
        where: The column with its table.
        name: Name of the column.
        example: A date in brackets; "" for values that are no texts.
        is_target: True for the target.
    """
    remedy = "predict another column, or add a column of numbers, such as the days since the first date"
    if not is_target:
        remedy = (
            "add columns of numbers, such as the days since the first date or the month, and ignore this "
            f'one: ignore = ["{name}"]'
        )
    other = f"; or take each value as a category: {as_categories(name, is_target)}" if example else ""
    return SourceError(f"{where} has dates or times{example}, which have no natural scale; {remedy}{other}")


def refuse_dates_and_separators(
    where: str, name: str, values: Collection[str], reading: Reading, is_target: bool
) -> None:
    """Raise SourceError for dates, and for numbers with a comma or with separators, a currency or %.

    Args:
        where: The column with its table.
        name: Name of the column.
        values: The different values of the column.
        reading: How texts become values.
        is_target: True for the target.
    """
    dates = [each for each in values if _DATE.fullmatch(each)]
    if dates and 2 * len(dates) >= len(values):
        raise date_error(where, name, f" ({dates[0]!r})", is_target)
    commas = [each for each in values if _COMMA.fullmatch(each)]
    if commas and all(_COMMA.fullmatch(each) or is_number(each) for each in values):
        raise SourceError(
            f'{where} has numbers with a comma ({commas[0]!r}); set decimal = ",", or remove the '
            "separators of thousands"
        )
    pattern = _SEPARATED[reading.decimal]
    separated = [each for each in values if pattern.fullmatch(each) and not reading.is_number(each)]
    numbers = len(separated) + sum(map(reading.is_number, values))
    if separated and 2 * numbers > len(values):
        raise SourceError(
            f"{where} has numbers with separators of thousands, a currency or %, or a long minus sign "
            f"({separated[0]!r}); write them without, or use the values as categories: "
            f"{as_categories(name, is_target)}"
        )
