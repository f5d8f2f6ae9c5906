"""The meaning of texts in tables: missing values, long integers, dates, categories that training lacked."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from pandas._libs.parsers import STR_NA_VALUES
from pyarrow import parquet

from cotswold.data import TableSource, table
from cotswold.data.preprocessing.table_schema import MISSING_VALUES
from cotswold.data.sources.tables import open_like
from cotswold.errors import SourceError

LONG = [2**53 + 1, 2**53 + 3, 2**60 + 1]


def rows(source: TableSource) -> list[list[float]]:
    found: list[list[float]] = source.rows(np.arange(len(source))).tolist()
    return found


def given(kind: str, columns: dict[str, list[str]], path: Path) -> Any:
    """Return columns of texts as a kind of table."""
    if kind == "csv":
        lines = [list(columns), *zip(*columns.values(), strict=True)]
        path.write_text("".join(",".join(f'"{value}"' for value in line) + "\n" for line in lines))
        return path
    makers: dict[str, Any] = {
        "pandas": lambda: pandas.DataFrame(columns),
        "objects": lambda: pandas.DataFrame(columns, dtype=object),
        "polars": lambda: polars.DataFrame(columns),
        "pyarrow": lambda: pyarrow.table(columns),
        "mapping": lambda: columns,
    }
    return makers[kind]()


def test_missing_values_are_those_of_pandas_and_three_more() -> None:
    assert set(MISSING_VALUES) == STR_NA_VALUES | {"?", "-", "NaT"}


@pytest.mark.parametrize("kind", ["csv", "pandas", "objects", "polars", "pyarrow", "mapping"])
@pytest.mark.parametrize("text", MISSING_VALUES)
def test_a_text_that_means_missing_does_so_in_every_kind_of_table(
    text: str, kind: str, tmp_path: Path
) -> None:
    source = given(kind, {"n": ["1", text, "3"], "t": ["x", text, "y"]}, tmp_path / "a.csv")
    found = table(source, missing="impute")
    assert [column.categories for column in found.schema.columns] == [None, ("x", "y")]
    assert np.isnan(rows(found)).tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_a_missing_value_that_is_a_category_has_a_remedy() -> None:
    columns = {"fence": ["None", "wood", "None"], "x": [1.0, 2.0, 4.0]}
    with pytest.raises(SourceError, match=r"if 'None' is a category of its own, set missing_values without"):
        table(columns)
    found = table(columns, missing_values=[""])
    assert found.schema.columns[0].categories == ("None", "wood")


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "kind", ["csv", "texts", "objects", "int64", "Int64", "decimals", "polars", "pyarrow", "parquet"]
)
def test_integers_whose_digits_would_be_lost_are_refused_or_categories(
    kind: str, missing: bool, tmp_path: Path
) -> None:
    values: list[Any] = [*LONG, None] if missing else list(LONG)
    texts = ["" if value is None else str(value) for value in values]
    x = [float(each * each) for each in range(len(values))]
    makers: dict[str, Any] = {
        "csv": lambda: given("csv", {"id": texts, "x": list(map(str, x))}, tmp_path / "a.csv"),
        "texts": lambda: {"id": texts, "x": x},
        "objects": lambda: pandas.DataFrame({"id": pandas.Series(values, dtype=object), "x": x}),
        "int64": lambda: {"id": np.array(values, object if missing else np.int64), "x": x},
        "Int64": lambda: pandas.DataFrame({"id": pandas.array(values, dtype="Int64"), "x": x}),
        "decimals": lambda: {"id": [None if v is None else Decimal(v) for v in values], "x": x},
        "polars": lambda: polars.DataFrame({"id": values, "x": x}),
        "pyarrow": lambda: pyarrow.table({"id": values, "x": x}),
    }
    if kind == "parquet":
        source: Any = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.table({"id": values, "x": x}), source)
    else:
        source = makers[kind]()
    said = r"column 'id' has integers beyond 2\^53 \('9007199254740993'\), whose last digits would be lost"
    for target in (None, "id"):
        if not missing or target is None:
            with pytest.raises(SourceError, match=said):
                table(source, target=target, missing="impute")
    found = table(source, categorical=["id"], missing="impute")
    assert found.schema.columns[0].categories == tuple(map(str, LONG))
    assert len(table(source, ignore=["id"])) == len(values)
    other = open_like(found.schema, {"id": [str(2**53), str(2**53 + 1)], "x": [1.0, 2.0]}, is_labelled=False)
    assert [row[:3] for row in rows(other)] == [[0, 0, 0], [1, 0, 0]]


def test_long_integers_that_are_exact_stay_numbers() -> None:
    values = [2**53, 2**60, -(2**62), 10**22]
    for column in (list(map(str, values)), np.array(values[:3]), values):
        found = table({"a": column, "x": list(range(len(column)))}, features=["a"])
        assert [row[0] for row in rows(found)] == [float(each) for each in values[: len(column)]]


@pytest.mark.parametrize(
    "form",
    [
        *(
            "2024-01-{:02}",
            "{:02}/01/2024",
            "{:02}.01.24",
            "2024-01-{:02}T10:00",
            "2024-01-{:02} 10:00:00.5+02:00",
        ),
        *(
            "{} Jan 2024",
            "January {}, 2024",
            "{:02}-Jan-24",
            "Mon, {:02} Jan 2024 10:00:00 GMT",
            "1st Feb {:02}",
        ),
        *("2024-{:02}", "2024-W{:02}", "10:{:02}", "10:{:02}:30", "3:{:02} PM", "202401{:02}T101500Z"),
        "2024\u5e741\u6708{}\u65e5",
    ],
)
def test_dates_as_texts_are_refused_unless_they_are_named_as_categories(form: str) -> None:
    dates = [form.format(day) for day in range(1, 10)]
    columns: dict[str, Any] = {"day": dates, "x": [float(each) ** 2 for each in range(9)]}
    said = r"column 'day' has dates or times \('.*ignore = \[\"day\"\]; or .* categorical = \[\"day\"\]"
    with pytest.raises(SourceError, match=said):
        table(columns)
    with pytest.raises(SourceError, match=r"target 'day' has dates .*; or .* target_kind = \"class\""):
        table(columns, target="day")
    with pytest.raises(SourceError, match="column 'day' has dates or times"):
        table({"day": [dates[0], "never"], "x": [1.0, 2.0]})
    assert table(columns, categorical=["day"]).schema.columns[0].categories == tuple(sorted(dates))
    assert len(table(columns, target="day", target_kind="class").classes) == 9
    assert len(table(columns, ignore=["day"])) == 9


def test_months_weekdays_and_codes_are_categories() -> None:
    texts = ["may", "mon", "2024", "12-345", "1.2", "March", "B-2024-x"]
    assert table({"a": texts}).schema.columns[0].categories is not None


def test_integers_that_look_like_dates_are_reported() -> None:
    said = "column 'a' is read as numbers, but looks like dates (20240131)"
    assert any(note.startswith(said) for note in table({"a": [20240131, 20231201], "x": [1, 5]}).settle())
    assert not table({"a": [20240132, 20231201], "x": [1, 5]}).settle()


def test_numbers_and_texts_in_a_target_are_read_as_in_a_feature() -> None:
    mixed = {"y": ["1", "2", "a", "b", "c"], "x": [1.0, 2.0, 4.0, 8.0, 16.0]}
    assert table(mixed, target="y").classes == ("1", "2", "a", "b", "c")
    assert table(mixed).schema.columns[0].categories == ("1", "2", "a", "b", "c")
    with pytest.raises(
        SourceError, match=r"row 3: column 'y' has 'b' among numbers; .*target_kind = \"class\""
    ):
        table({"y": ["1", "2", "3", "b"], "x": [1.0, 2.0, 4.0, 8.0]}, target="y")


def test_a_column_of_which_training_knows_no_value_is_an_error() -> None:
    own = table({"job": ["cook", "clerk", "nurse", "cook"], "x": [1.0, 3.0, 9.0, 27.0]})
    said = (
        r"a pandas frame: column 'job' has no category of the training table: 20 rows have 'Koch', 'Arzt', "
        r"and the training table has 'clerk', 'cook', 'nurse'; give .* ignore = \[\"job\"\]"
    )
    wrong = pandas.DataFrame({"job": ["Koch", "Arzt"] * 10, "x": np.arange(20.0) ** 2})
    with pytest.raises(SourceError, match=said):
        open_like(own.schema, wrong, is_labelled=False)
    with pytest.raises(SourceError, match="column 'job' has no category"):
        table({"job": ["cook", "clerk"], "x": [1.0, 3.0]}, test_source=wrong)
    some = open_like(own.schema, wrong[:3].assign(job=["Koch", "Arzt", "cook"]), is_labelled=False)
    assert some.settle() == (
        "column 'job' has 2 new categories in 2 rows ('Koch', 'Arzt'), read as none of the known ones",
    )
    few = open_like(own.schema, wrong[:19], is_labelled=False)
    assert rows(few)[0][:3] == [0, 0, 0] and len(few.settle()) == 1


def test_a_class_that_looks_missing_has_a_remedy() -> None:
    columns = {"x": [1.0, 2.0, 3.0], "y": ["+", "-", "+"]}
    with pytest.raises(
        SourceError, match=r"in 1 row of 3\).*if '-' is a class of its own, set missing_values"
    ):
        table(columns, target="y")
    assert table(columns, target="y", missing_values=["?"]).classes == ("+", "-")


@pytest.mark.parametrize("dtype", [object, np.bytes_])
def test_bytes_are_texts(dtype: Any) -> None:
    found = table({"a": np.array([b"x", "\u00e9".encode()], dtype), "b": [1.0, 2.0]})
    assert found.schema.columns[0].categories == ("x", "\u00e9")
