"""Counts and quantities printed by `cotswold info`; tables of evaluations on narrow terminals."""

from __future__ import annotations

import pytest

from cotswold.analysis import Classification, Regression
from cotswold.cli.info import _figure
from cotswold.cli.support.evaluation_tables import print_confusion, print_errors


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("update_flops", 36_112_330_000_000, "36,112.3 GFLOP"),
        ("forward_flops", 2_000_000, "2.0 MFLOP"),
        ("forward_flops", 1_920, "1.9 kFLOP"),
        ("forward_flops", 0, "0 FLOP"),
        ("update_seconds", 1.25, "1.250 s"),
        ("update_seconds", 0.00125, "1.2 ms"),
        ("update_seconds", 0.0000125, "12.5 µs"),
    ],
)
def test_a_quantity_is_in_a_unit_of_which_there_is_one(name: str, value: float, said: str) -> None:
    assert _figure(name, value) == said


CLASSES = tuple(f"[b]class number {number}[/b]" for number in range(3))


@pytest.mark.parametrize(
    ("columns", "rows"), [(120, "rows are true classes, columns"), (60, "columns are true classes, rows")]
)
def test_a_confusion_fits_the_terminal_with_whole_names(
    columns: int, rows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_confusion(Classification(2, "test", CLASSES, ((5, 0, 0), (1, 2, 3), (0, 0, 7))))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= columns
    assert f"confusion: {rows} are predictions" in said
    assert all(said.count(name) >= 2 for name in CLASSES)
    assert "33.3%" in said


def test_errors_of_a_long_target_fit_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "compressive strength of concrete after four weeks"
    print_errors(Regression(2, "test", 3, (4.0,), (0.25,), (2.0,), targets=(name,)))
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80 and name in said and "25.0%" in said
