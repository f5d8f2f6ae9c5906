"""The columns of a table, as a network reads them.

Knows: names, numbers and categories, the position of each feature. Does not know: files, rows, statistics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cotswold.files import MalformedError, take
from cotswold.phrases import counted

MISSING_VALUES = (
    *("", "?", "-"),
    *("NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>"),
    *("NaN", "nan", "-NaN", "-nan"),
    *("1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    *("NULL", "null", "None", "NaT"),
)
"""Texts that mean a missing value [default]: those of pandas, `?`, `-` and `NaT`."""


@dataclass(frozen=True)
class TableColumn:
    """A column that a network reads: numbers, or categories of which each becomes one feature.

    Args:
        name: Name of the column.
        categories: The categories in the order of their features; None for numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def features(self) -> int:
        """Number of features: 1 for numbers, or one for each category."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table and the reading of their values; every row becomes a vector of features.

    A number is one feature. A category is one feature for each of its values: 1 for the row's own, 0 for the
    others.

    Args:
        columns: The columns that are read.
        layout: Names of all columns of the source in order, including those that are not read.
        is_positional: True if the source has no names, so that ``layout`` consists of numbers from 0.
        target: Name of the column to predict; None without one.
        target_kind: "class" or "number"; None without a target.
        missing: "refuse" raises an error for a missing value. "impute" replaces it by the median of the
            column, or by the most frequent category, both of the training split.
        missing_values: Texts that mean a missing value.
        new_categories: "zeros" gives a category that is not in ``columns`` zeros; "refuse" raises an error.
        decimal: Decimal mark of numbers in text files, "." or ",".
        sequence: Name of the column that names the sequence of a row; None if rows are independent.
        delimiter: Character between the values of a line of the source, if it was given; None to detect it.
    """

    columns: tuple[TableColumn, ...]
    layout: tuple[str, ...]
    is_positional: bool = False
    target: str | None = None
    target_kind: Literal["class", "number"] | None = None
    missing: Literal["refuse", "impute"] = "refuse"
    missing_values: tuple[str, ...] = MISSING_VALUES
    new_categories: Literal["zeros", "refuse"] = "zeros"
    decimal: Literal[".", ","] = "."
    sequence: str | None = None
    delimiter: str | None = None

    @property
    def features(self) -> int:
        """Number of features of a row."""
        return sum(column.features for column in self.columns)

    @property
    def feature_names(self) -> list[str]:
        """Name of each feature: the column, or ``column=category``."""
        return [
            name
            for column in self.columns
            for name in (
                [column.name]
                if column.categories is None
                else [f"{column.name}={category}" for category in column.categories]
            )
        ]

    @property
    def is_category(self) -> list[bool]:
        """True for each feature that belongs to a category."""
        return [column.categories is not None for column in self.columns for _ in range(column.features)]

    def state(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if self.delimiter is None:
            del plain["delimiter"]
        return plain

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TableSchema:
        """Restore a schema.

        Args:
            state: A value of `state`.

        Raises:
            MalformedError: for anything else.
        """
        columns = []
        for each in take(state, "columns", list):
            if not isinstance(each, dict):
                raise MalformedError("does not describe a table (a column is not a table of values)")
            categories = each.get("categories")
            columns.append(
                TableColumn(
                    take(each, "name", str), None if categories is None else _texts(each, "categories")
                )
            )
        found = cls(
            tuple(columns),
            _texts(state, "layout"),
            take(state, "is_positional", bool),
            state.get("target"),
            state.get("target_kind"),
            state.get("missing", "refuse"),
            _texts(state, "missing_values"),
            state.get("new_categories", "zeros"),
            state.get("decimal", "."),
            state.get("sequence"),
            state.get("delimiter"),
        )
        choices = {
            "target_kind": (None, "class", "number"),
            "missing": ("refuse", "impute"),
            "new_categories": ("zeros", "refuse"),
            "decimal": (".", ","),
        }
        wrong = [name for name, known in choices.items() if getattr(found, name) not in known]
        if (
            wrong
            or not found.columns
            or not isinstance(found.target, str | None)
            or not isinstance(found.sequence, str | None)
        ):
            raise MalformedError(f"does not describe a table ({', '.join(wrong) or 'columns or target'})")
        return found


def describe_preparation(state: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings of a preparation's state, and for a table a phrase for each column."""
    settings: dict[str, object] = {
        "preparation": {name: each for name, each in state.items() if name not in ("kind", "table")}
    }
    if "table" not in state:
        return settings
    schema = TableSchema.from_state(state["table"])
    columns = {
        column.name: "numbers" if column.categories is None else counted(len(column.categories), "category")
        for column in schema.columns
    }
    if schema.sequence is not None:
        columns[schema.sequence] = "sequence"
    if schema.target is not None:
        columns[schema.target] = f"target ({schema.target_kind})"
    return {"columns": columns, **settings}


def _texts(state: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found: list[object] = take(dict(state), name, list)
    if not all(isinstance(each, str) for each in found):
        raise MalformedError(f"does not describe a table ({name} are not texts)")
    return tuple(map(str, found))
