"""The logger `csv`: a table that survives kills and resumed runs."""

from __future__ import annotations

import csv
from pathlib import Path

from cotswold.run.loggers.csv_file import CsvFile


def step(number: int, **fields: object) -> dict[str, object]:
    return {"kind": "step", "phase": 0, "step": number, "time": 1.5, "seconds": 0.5, **fields}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_step_and_validation_and_a_column_for_each_field(tmp_path: Path) -> None:
    table = CsvFile(tmp_path / "metrics.csv")
    table.write(step(1, loss=0.5, note='a "b", c'))
    table.write({"kind": "checkpoint", "step": 1, "path": "x"})
    table.write({**step(1, loss=0.25, accuracy=None, layers=[1]), "kind": "validation"})
    table.write(step(2, loss=0.125))
    table.close()
    found = rows(tmp_path / "metrics.csv")
    assert [(row["kind"], row["step"], row["loss"]) for row in found] == [
        ("step", "1", "0.5"),
        ("validation", "1", "0.25"),
        ("step", "2", "0.125"),
    ]
    assert found[0]["note"] == 'a "b", c' and "layers" not in found[0]
    assert list(found[0]) == ["kind", "phase", "step", "time", "seconds", "loss", "note", "accuracy"]


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvFile(path)
    for number in (1, 2, 3):
        first.write(step(number, loss=float(number)))
    with path.open("a") as file:
        file.write("step,0,4,1.5,0.")  # a kill tore the last row
    second = CsvFile(path)
    second.write({"kind": "resumed", "step": 2})
    second.write(step(3, loss=3.5, extra=1))
    assert [(row["step"], row["loss"], row["extra"]) for row in rows(path)] == [
        ("1", "1.0", ""),
        ("2", "2.0", ""),
        ("3", "3.5", "1"),
    ]
    third = CsvFile(path)
    third.write({"kind": "restarted"})
    third.write(step(1, loss=9.0))
    assert [row["loss"] for row in rows(path)] == ["9.0"]


def test_a_file_with_a_torn_row_is_continued_without_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    CsvFile(path).write(step(1, loss=1.0))
    with path.open("a") as file:
        file.write("step,0,2")
    CsvFile(path).write(step(2, loss=2.0))
    assert [(row["step"], row["loss"]) for row in rows(path)] == [("1", "1.0"), ("2", "2.0")]


def test_a_file_of_something_else_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"a,b\n\xff,2\n")
    CsvFile(path).write(step(1, loss=1.0))
    assert [row["loss"] for row in rows(path)] == ["1.0"]
