"""One value in several spellings: missing numbers, separators, categories of files and frames, delimiters."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from cotswold.data import TableSource, table
from cotswold.data.preprocessing.table_schema import TableSchema
from cotswold.data.sources.tables import open_like
from cotswold.errors import SourceError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows(source: TableSource) -> list[list[float]]:
    found: list[list[float]] = source.rows(np.arange(len(source))).tolist()
    return found


def codes(source: TableSource) -> list[Any]:
    return [column.categories for column in source.schema.columns]


@pytest.mark.parametrize(
    "values", [[-999.0, 1.0, 3.0], ["-999", "1", "3"], ["-999.0", "1", "3"], np.array([-999, 1, 3])]
)
def test_a_number_that_means_missing_is_missing_in_every_spelling(values: Any) -> None:
    given = {"a": values, "b": [1.0, 2.0, 3.0]}
    found = rows(table(given, missing="impute", missing_values=["-999"]))
    assert np.isnan(found[0][0]) and found[1:] == [[1, 2], [3, 3]]
    with pytest.raises(SourceError, match="column 'a' has a missing value"):
        table(given, missing_values=["-999"])
    with pytest.raises(SourceError, match="the target 'a' is missing"):
        table(given, target="a", target_kind="number", missing_values=["-999"])


def test_points_are_no_decimal_marks_beside_decimal_commas(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a;b\n12,5;1\n999;2\n1.234;3\n7,5;4\n")
    with pytest.raises(SourceError, match=r"line 4: column 'a' has '1.234' among numbers"):
        table(path, decimal=",")
    path.write_text("a;b\n1.234;1\n1.500;2\n1.234,5;3\n")
    with pytest.raises(SourceError, match=r"separators of thousands.*'1.234'"):
        table(path, decimal=",")
    path.write_text("a;b\n12,5;1\n-7,25;2\n")
    assert rows(table(path, decimal=",")) == [[12.5, 1], [-7.25, 2]]
    frame = pandas.DataFrame({"a": [1.5, 2.5, 3.5], "b": [1, 2, 3]})
    assert table(frame, target="a", decimal=",").schema.target_kind == "number"


@pytest.mark.parametrize(
    "values", [("1,234.50", "12"), ("1,234,567", "12,000"), ("$12", "$7"), ("12%", "3%"), ("\u22125", "4")]
)
def test_numbers_with_separators_or_units_are_refused_as_features_and_targets(
    values: tuple[str, ...],
) -> None:
    texts = [*values, values[0]]
    given: dict[str, Any] = {"a": texts, "b": [1.0, 2.0, 3.0]}
    for target in (None, "a"):
        with pytest.raises(SourceError, match=r"separators of thousands, a currency or %"):
            table(given, target=target)
    assert codes(table(given, categorical=["a"]))[0] is not None
    assert table(given, target="a", target_kind="class").classes


def test_addresses_versions_and_codes_stay_categories() -> None:
    texts = ["192.168.100.101", "1.2.3", "A12", "12-345", "10.0.0.1"]
    assert codes(table({"a": texts, "b": [1.0, 2, 3, 4, 5]}))[0] == tuple(sorted(texts))


def test_dates_are_refused_as_targets() -> None:
    given = {"a": [1.0, 2.0], "day": ["2024-01-02", "2024-02-03"]}
    with pytest.raises(SourceError, match="target 'day' has dates or times"):
        table(given, target="day")
    assert len(table(given, target="day", target_kind="class").classes) == 2


def test_categories_of_a_file_are_those_that_pandas_reads(tmp_path: Path) -> None:
    text = "flag,postcode,mark\ntrue,01234,1.0\nfalse,20000,2.0\n"
    main = table(write(tmp_path / "a.csv", text), categorical=["postcode", "mark"])
    frame = pandas.read_csv(io.StringIO(text))
    other = open_like(main.schema, frame, is_labelled=False)
    assert rows(other) == rows(main) and not other.notes
    alike = table({"a": ["01", "1", "x"]}, categorical=["a"])
    assert rows(open_like(alike.schema, {"a": ["1", "01", "1.0"]}, is_labelled=False)) == [
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 0],
    ]


def test_the_delimiter_is_kept_in_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a:b\n1:2\n3:4\n")
    main = table(path, delimiter=":")
    schema = TableSchema.from_state(main.schema.state())
    assert rows(open_like(schema, path, is_labelled=False)) == [[1, 2], [3, 4]]
    assert rows(open_like(schema, write(tmp_path / "b.csv", "b,a\n2,1\n"), is_labelled=False)) == [[1, 2]]
    assert "delimiter" not in table(tmp_path / "b.csv").schema.state()


def test_a_comma_is_the_last_delimiter_of_several(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,5;2,5\n3,5;4,5\n")
    assert rows(table(path, decimal=",")) == [[1.5, 2.5], [3.5, 4.5]]
    with pytest.raises(SourceError, match='set decimal = ","'):
        table(path)
    path.write_text("Smith, John\t34\nLee, Ann\t35\n")
    assert codes(table(path)) == [("Lee, Ann", "Smith, John"), None]


def test_a_header_with_an_empty_name_is_a_header(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"age": [30, 41], "job": ["cook", "clerk"]}, index=[7, 5])
    frame.to_csv(tmp_path / "a.csv")
    found = table(tmp_path / "a.csv", ignore=["unnamed 0"])
    assert [column.name for column in found.schema.columns] == ["age", "job"] and len(found) == 2


def test_names_are_read_without_blanks_and_other_capitals_are_named(tmp_path: Path) -> None:
    main = table(write(tmp_path / "a.csv", "size, colour\n1,red\n2,blue\n"))
    frame = pandas.DataFrame({"size": [1, 2], " colour": ["red", "blue"]})
    assert rows(open_like(main.schema, frame, is_labelled=False)) == rows(main)
    assert table(frame, target=" colour").classes == table(frame, target="colour").classes == ("blue", "red")
    with pytest.raises(SourceError, match=r"lacks 1 column .*'colour'; .* spell .*, capitals included"):
        open_like(main.schema, frame.rename(columns={" colour": "Colour"}), is_labelled=False)


def test_a_file_without_the_names_of_the_run_and_one_with_other_names_are_refused(tmp_path: Path) -> None:
    named = table(write(tmp_path / "a.csv", "size,colour,flag\n1,red,no\n2,blue,no\n"))
    bare = write(tmp_path / "b.csv", "1,red,no\n2,no,no\n")
    said = r"b\.csv has no line of names; add those of the run as the first line: 'size', 'colour', 'flag'"
    with pytest.raises(SourceError, match=said):
        open_like(named.schema, bare, is_labelled=False)
    write(tmp_path / "c.csv", "1,no,no\n2,no,no\n")  # two columns would have one name
    with pytest.raises(SourceError, match=r"c\.csv has no line of names"):
        open_like(named.schema, tmp_path / "c.csv", is_labelled=False)
    with pytest.raises(SourceError, match="lacks 1 column of the run: 'size'"):
        open_like(named.schema, write(tmp_path / "d.csv", "2019,colour,flag\n1,red,no\n"), is_labelled=False)
    with pytest.raises(SourceError, match=r"the first line of .*a\.csv has names, but the run .* remove it"):
        open_like(table(bare).schema, tmp_path / "a.csv", is_labelled=False)
