"""Tables as sources: kinds of columns, faults with their place, stores, and tables of the same columns."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

from cotswold.data import Store, TableSource, VectorTransform, prepare, table
from cotswold.data.preprocessing.table_schema import MISSING_VALUES
from cotswold.data.sources.tables import open_like
from cotswold.errors import SourceError
from cotswold.files import MalformedError
from cotswold.recipe.schema import TableData

ROWS = [
    ("age", "job", "city", "income", "answer"),
    ("30", "clerk", "Leeds", "1.5", "no"),
    ("41", "cook", "York", "2.5", "yes"),
    ("52", "clerk", "York", "9", "no"),
    ("63", "nurse", "Leeds", "4", "yes"),
]
CODE = ["age", "job=clerk", "job=cook", "job=nurse", "city=Leeds", "city=York", "income"]


def write(path: Path, rows: Sequence[tuple[str, ...]] = ROWS) -> Path:
    path.write_text("\n".join(map(",".join, rows)))
    return path


def frame() -> pandas.DataFrame:
    """Return the rows of `ROWS` with their types."""
    found = pandas.DataFrame(ROWS[1:], columns=list(ROWS[0]))
    return found.astype({"age": "int64", "income": "float64"})


def all_rows(source: TableSource) -> list[list[float]]:
    """Return every row of features."""
    found: list[list[float]] = source.rows(np.arange(len(source))).tolist()
    return found


def stored(source: TableSource, path: Path, **settings: Any) -> Store:
    """Return a store of all rows for training."""
    prepare(source, path, source.preparation(**settings), validation=0.0, jobs=1)
    return Store(path)


def transform_of(store: Store) -> VectorTransform:
    """Return the transform of a table."""
    assert isinstance(store.transform, VectorTransform)
    return store.transform


def test_numbers_are_features_and_each_category_is_one(tmp_path: Path) -> None:
    found = table(write(tmp_path / "a.csv"), target="answer")
    assert found.schema.feature_names == CODE
    assert all_rows(found)[1] == [41, 0, 1, 0, 0, 1, 2.5]
    assert found.classes == ("no", "yes")
    assert [found.label(index) for index in range(4)] == [0, 1, 0, 1]
    assert found.name(2) == "a.csv:4"


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "parquet", "structured", "mapping"])
def test_every_kind_of_table_gives_the_rows_of_the_text_file(kind: str, tmp_path: Path) -> None:
    pairs = frame()
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pandas(pairs), tmp_path / "a.parquet")
    sources: dict[str, object] = {
        "pandas": pairs,
        "polars": polars.DataFrame(ROWS[1:], schema=list(ROWS[0]), orient="row").with_columns(
            polars.col("age").cast(polars.Int64), polars.col("income").cast(polars.Float64)
        ),
        "pyarrow": pyarrow.Table.from_pandas(pairs),
        "parquet": tmp_path / "a.parquet",
        "structured": pairs.to_records(index=False).view(np.ndarray),
        "mapping": {name: pairs[name].to_list() for name in ROWS[0]},
    }
    wanted = table(write(tmp_path / "a.csv"), target="answer")
    found = table(sources[kind], target="answer")
    assert all_rows(found) == all_rows(wanted)
    assert (found.schema, found.classes) == (wanted.schema, wanted.classes)


def test_columns_without_names_are_numbered_and_counted_from_the_end(tmp_path: Path) -> None:
    found = table(write(tmp_path / "a.csv", ROWS[1:]), target=-1, ignore=["2"])
    assert found.schema.layout == tuple("01234")
    assert [column.name for column in found.schema.columns] == ["0", "1", "3"]
    array = np.array([[1.0, 2.0, 0.0], [3.0, 4.0, 1.0]])
    assert table(array, target=2).classes == ("0", "1")


def test_features_ignore_and_categorical_choose_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    assert [each.name for each in table(path, features=["income", 0]).schema.columns] == ["age", "income"]
    assert table(path, target="answer", categorical=["age"]).schema.columns[0].categories == (
        "30",
        "41",
        "52",
        "63",
    )
    with pytest.raises(SourceError, match="'age' is in features and in ignore"):
        table(path, features=["age"], ignore=["age"])
    with pytest.raises(SourceError, match="no column to learn from"):
        table(path, ignore=["age", "job", "city", "income"], target="answer")
    with pytest.raises(SourceError, match=r"has no column 'wage' for ignore; its 5 columns are 'age'"):
        table(path, ignore=["wage"])
    with pytest.raises(SourceError, match=r"ignore is a list of columns; write \[\"age\"\]"):
        table(path, ignore="age")


def test_a_text_among_numbers_is_named_with_its_line(tmp_path: Path) -> None:
    rows = [*ROWS, ("about 40", "cook", "York", "3", "no")]
    with pytest.raises(SourceError, match=r"a\.csv, line 6: column 'age' has 'about 40' among numbers"):
        table(write(tmp_path / "a.csv", rows), target="answer")
    found = table(tmp_path / "a.csv", target="answer", missing_values=["about 40"], missing="impute")
    assert np.isnan(all_rows(found)[4][0])


@pytest.mark.parametrize("text", ["2020-01-03", "3.1.2020", "2020-01-03 10:30:00"])
def test_dates_are_refused_with_advice(text: str, tmp_path: Path) -> None:
    rows = [("day", *ROWS[0])] + [(text, *row) for row in ROWS[1:]]
    with pytest.raises(SourceError, match=r"column 'day' has dates or times .*the days since the first date"):
        table(write(tmp_path / "a.csv", rows))
    for dates in (pandas.to_datetime(["2020-01-03"] * 4), [datetime.date(2020, 1, 3)] * 4):
        with pytest.raises(SourceError, match="column 'day' has dates or times"):
            table(frame().assign(day=dates))
    assert len(table(tmp_path / "a.csv", ignore=["day"])) == 4


def test_numbers_with_a_decimal_comma_need_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("size;mark\n1,5;a\n2;b\n")
    with pytest.raises(SourceError, match=r"has numbers with a comma \('1,5'\); set decimal = \",\""):
        table(path)
    assert all_rows(table(path, decimal=",")) == [[1.5, 1, 0], [2, 0, 1]]


def test_missing_values_are_refused_or_imputed_from_the_training_rows(tmp_path: Path) -> None:
    rows = [*ROWS, ("?", "clerk", "NA", "100", "no")]
    path = write(tmp_path / "a.csv", rows)
    said = r"a\.csv, line 6: column 'age' has a missing value \(in 1 row of 5\); set missing = \"impute\""
    with pytest.raises(SourceError, match=said):
        table(path, target="answer")
    found = table(path, target="answer", missing="impute")
    assert "missing values of a.csv are imputed in 2 columns: 'age' (1), 'city' (1)" in found.settle()
    transform = transform_of(stored(found, tmp_path / "store", standardise=False))
    values = transform.values(found.rows(np.array([4])))[0, :, 0, 0].tolist()
    assert values == [
        46.5,
        1,
        0,
        0,
        1,
        0,
        100,
    ]  # the median age, and Leeds, the first of two equally frequent
    test = write(tmp_path / "b.csv", [ROWS[0], ("1000", "cook", "York", "1", "no")])
    held = table(path, target="answer", missing="impute", test_source=test)
    kept = stored(held, tmp_path / "held", standardise=False)
    assert kept.splits == {"train": 5, "test": 1}
    assert transform_of(kept).fill is not None and transform_of(kept).fill[0] == 46.5  # type: ignore[index]  # checked on its left


def test_numbers_are_standardised_and_categories_stay_0_and_1(tmp_path: Path) -> None:
    store = stored(table(write(tmp_path / "a.csv"), target="answer"), tmp_path / "store")
    values = store.read("train", 0, 4)[:, :, 0, 0]
    numbers = [0, 6]
    assert np.abs(values[:, numbers].mean(0)).max() < 1e-6
    assert np.abs(values[:, numbers].std(0) - 1).max() < 1e-6
    assert set(values[:, 1:6].ravel().tolist()) == {0.0, 1.0}
    assert "columns" in store.describe() and store.describe()["columns"]["city"] == "2 categories"  # type: ignore[index]  # a mapping of columns


def test_a_transform_is_restored_with_its_columns(tmp_path: Path) -> None:
    source = table(write(tmp_path / "a.csv"), target="answer", missing="impute")
    transform = transform_of(stored(source, tmp_path / "store"))
    again = VectorTransform.from_state(transform.state())
    rows = source.rows(np.arange(4))
    assert np.array_equal(again.values(rows), transform.values(rows))
    assert again.preparation == transform.preparation
    state = transform.state()
    state["preparation"]["table"]["missing"] = "guess"
    with pytest.raises(MalformedError, match="missing"):
        VectorTransform.from_state(state)


def test_another_table_is_matched_by_names_in_any_order(tmp_path: Path) -> None:
    own = table(write(tmp_path / "a.csv"), target="answer")
    other = frame()[["income", "city", "job", "age"]].assign(extra=1)
    found = open_like(own.schema, other, is_labelled=False)
    assert all_rows(found) == all_rows(own) and not found.classes
    assert found.settle() == ("columns that the run does not know are not read: 'extra'",)
    with pytest.raises(SourceError, match=r"lacks 2 columns of the run: 'age', 'job'; it has 'income'"):
        open_like(own.schema, other.drop(columns=["age", "job"]), is_labelled=False)
    with pytest.raises(SourceError, match="lacks 1 column of the run: 'answer'"):
        open_like(own.schema, other, is_labelled=True)
    with pytest.raises(SourceError, match=r"row 0: column 'age' has 'x' among numbers"):
        open_like(own.schema, other.assign(age="x"), is_labelled=False)


def test_another_table_without_names_is_matched_by_position(tmp_path: Path) -> None:
    own = table(write(tmp_path / "a.csv", ROWS[1:]), target=0)
    without = write(tmp_path / "b.csv", [row[1:] for row in ROWS[1:]])
    assert all_rows(open_like(own.schema, without, is_labelled=False)) == all_rows(own)
    with pytest.raises(
        SourceError, match=r"has 3 columns without names; .* 5 columns \(4 without the target"
    ):
        open_like(own.schema, np.zeros((2, 3)), is_labelled=False)


def test_new_categories_are_zeros_with_a_note_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    new = frame().assign(job=["pilot", "cook", "pilot", "smith"])
    found = open_like(table(path, target="answer").schema, new, is_labelled=False)
    assert all_rows(found)[0][1:4] == [0, 0, 0]
    said = "column 'job' has 2 new categories in 3 rows ('pilot', 'smith'), read as none of the known ones"
    assert found.settle() == (said,)
    strict = table(path, target="answer", new_categories="refuse")
    with pytest.raises(
        SourceError, match="column 'job' has 'pilot', a category that the training table lacks"
    ):
        open_like(strict.schema, new, is_labelled=False)


def test_columns_from_which_nothing_can_be_learnt_are_noted(tmp_path: Path) -> None:
    rows = [("id", "number", "same", "size", "y")]
    rows += [(f"c{17 * n}", str(n), "1", str(n % 7), "ab"[n % 2]) for n in range(25)]
    notes = " ".join(table(write(tmp_path / "a.csv", rows), target="y").settle())
    assert "column 'id' has another category in each row" in notes
    assert "column 'number' numbers the rows" in notes
    assert "column 'same' has one value in all rows (1)" in notes
    assert "'size'" not in notes


@pytest.mark.parametrize(
    ("values", "kind", "classes"),
    [
        (["3", "1", "2", "10"], "auto", ("1", "2", "3", "10")),
        (["1.5", "2", "3", "4"], "auto", ()),
        (["1.5", "2", "3", "4"], "class", ("1.5", "2", "3", "4")),
        (["3", "1", "2", "10"], "number", ()),
        (["b", "a", "c", "a"], "auto", ("a", "b", "c")),
    ],
)
def test_a_target_has_classes_or_numbers(
    values: list[str], kind: Any, classes: tuple[str, ...], tmp_path: Path
) -> None:
    rows = [("x", "y"), *((str(number), value) for number, value in enumerate(values))]
    found = table(write(tmp_path / "a.csv", rows), target="y", target_kind=kind)
    assert found.classes == classes
    assert found.targets == (0 if classes else 1)
    if not classes:
        assert found.labels(np.arange(4))[:, 0].tolist() == list(map(float, values))


def test_a_missing_or_wrong_target_is_named_with_its_line(tmp_path: Path) -> None:
    rows = [*ROWS, ("20", "cook", "York", "3", "?")]
    with pytest.raises(SourceError, match=r"a\.csv, line 6: the target 'answer' is missing"):
        table(write(tmp_path / "a.csv", rows), target="answer", missing="impute")
    with pytest.raises(SourceError, match=r"line 2: column 'answer' has 'no' among numbers"):
        table(write(tmp_path / "a.csv"), target="answer", target_kind="number")


def test_classes_of_a_test_table_may_end_in_a_full_stop_but_not_be_new(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    stops = [ROWS[0], *((*row[:4], row[4] + ".") for row in ROWS[1:])]
    found = table(path, target="answer", test_source=write(tmp_path / "b.csv", stops))
    assert found.classes == ("no", "yes") and "end in a full stop, which is removed" in found.settle()[-1]
    assert found.splits_of(np.arange(8)) == [None] * 4 + ["test"] * 4
    new = [ROWS[0], ("1", "cook", "York", "3", "maybe")]
    with pytest.raises(SourceError, match=r"b\.csv: target 'answer' has the class 'maybe', which .* lacks"):
        table(path, target="answer", test_source=write(tmp_path / "b.csv", new))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"a": [1, 2], "b": [1]}, r"columns of \[1, 2\] rows"),
        ({}, "has no rows"),
        ({"a": 3}, "has a single value for 'a'; give a list of values"),
        (np.zeros(3), r"the array has shape \(3,\)"),
        (np.zeros((0, 3)), "has no rows"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "several columns with the name 'a'"),
        (pandas.DataFrame({"a": [[1], [2]]}), "column 'a' has values of type list"),
        (pandas.DataFrame({"a": [None, None]}), "column 'a' has no value"),
        (pandas.DataFrame({"a": [1.0, np.inf]}), "row 1: column 'a' has inf"),
        (pandas.DataFrame({"a": [1, 2**60 + 1]}), r"integers beyond 2\^53"),
        (pandas.DataFrame({"a": [1j, 2j]}), "values of type complex128"),
        (polars.LazyFrame({"a": [1]}), r"give frame\.collect\(\)"),
        (7, "the source is no table but of type int"),
        ("nowhere.csv", "nowhere.csv does not exist"),
    ],
)
def test_what_is_no_table_is_refused(source: object, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        table(source)


def test_missing_values_of_frames_are_found() -> None:
    given = pandas.DataFrame(
        {"n": pandas.array([1, None], dtype="Int64"), "t": ["x", None], "b": pandas.array([True, None])}
    )
    found = table(given, missing="impute")
    assert [np.isnan(row).tolist() for row in all_rows(found)] == [[False] * 3, [True] * 3]
    drawn = table(polars.DataFrame({"n": [1, None], "t": ["x", None], "b": [True, None]}), missing="impute")
    assert [np.isnan(row).tolist() for row in all_rows(drawn)] == [[False] * 3, [True] * 3]


def test_too_many_categories_are_refused() -> None:
    with pytest.raises(SourceError, match=r"column 'name' has 10,001 categories, .* at most 10,000"):
        table({"name": [f"n{number}" for number in range(10_001)]})


def test_the_identity_follows_the_values_and_the_columns(tmp_path: Path) -> None:
    path, given = write(tmp_path / "a.csv"), frame()
    assert table(path, target="answer").identity == table(path, target="answer").identity
    assert table(path, target="answer").identity != table(path, target="answer", ignore=["age"]).identity
    assert table(given).identity != table(given.assign(age=1)).identity
    (tmp_path / "b").mkdir()
    assert table(write(tmp_path / "b" / "a.csv")).identity == table(path).identity


def test_the_recipe_has_the_defaults_of_the_function() -> None:
    assert tuple(TableData().missing_values) == MISSING_VALUES


def test_rows_of_sequences_are_joined_with_their_neighbours(tmp_path: Path) -> None:
    rows = [("id", "x", "y"), *((name, str(at), "ab"[at % 2]) for name in "pq" for at in range(3))]
    found = table(write(tmp_path / "a.csv", rows), target="y", sequence="id")
    assert found.lengths is not None and found.lengths.tolist() == [3, 3]
    assert [column.name for column in found.schema.columns] == ["x"]
    store = stored(found, tmp_path / "store", standardise=False, context=1)
    assert store.shape.channels == 3
    values = store.read("train", 0, 6)[:, :, 0, 0].tolist()
    assert values[:3] == [[0, 0, 1], [0, 1, 2], [1, 2, 2]]
    again = open_like(found.schema, tmp_path / "a.csv", is_labelled=False)
    assert again.lengths is not None and again.lengths.tolist() == [3, 3]
    with pytest.raises(SourceError, match="lacks 1 column of the run: 'id'"):
        open_like(found.schema, {"x": [1, 2]}, is_labelled=False)
    with pytest.raises(SourceError, match=r"line 5: the sequence 'p' continues after another one"):
        table(write(tmp_path / "b.csv", [rows[0], rows[1], rows[2], rows[4], rows[3]]), sequence="id")
