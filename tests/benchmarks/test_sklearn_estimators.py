"""benchmarks/sklearn_estimators.py measures both libraries on the same work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import sklearn_estimators


def test_every_problem_has_samples_for_training_and_test() -> None:
    made = [make() for make in sklearn_estimators.problems().values()]
    for each in made:
        assert len(each.train[0]) == len(each.train[1])
        assert len(each.test[0]) == pytest.approx(len(each.train[0]) / 3, abs=1)
        assert each.kind in ("classifier", "regressor")
    assert [each.name for each in made] == list(sklearn_estimators.problems())


@pytest.mark.parametrize("problem", ["small", "diabetes"])
def test_rows_are_printed_and_written(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--rounds", "1", "--seeds", "1", "--workers", "1", "--max-iter", "3", "--problem", problem]
    monkeypatch.setattr(sys, "argv", ["sklearn_estimators.py", *words, "--out", str(tmp_path)])
    sklearn_estimators.main()
    found = json.loads((tmp_path / "sklearn-estimators.json").read_text())
    names = [row["estimator"] for row in found["rows"]]
    assert names == ["scikit-learn", "1 worker, float32", "1 worker, float64"]
    rival, single, double = found["rows"]
    assert rival["speedup"]["median"] == 1.0
    assert single["iterations"] == double["iterations"] == rival["iterations"] == 3
    assert single["loss"] == pytest.approx(double["loss"], rel=1e-3)
    if problem == "small":  # of a regression, only ours standardises, which is 1 up to the split
        assert double["loss"] == pytest.approx(rival["loss"], rel=1e-3)
    assert len(capsys.readouterr().out.splitlines()) == 4
