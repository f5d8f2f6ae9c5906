"""benchmarks/hogwild.py: measurements and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from hogwild import hogwild
from lib.command import main
from lib.hogwild import COMPUTING, SHARED, TORCH

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


@pytest.mark.soak
def test_speeds_and_accuracies_are_left_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "small.toml"
    draw_labelled(tmp_path / "images", 12)
    recipe.write_text(supervised(tmp_path / "images", layers=LAYERS))
    words = ["--rounds", "1", "--samples", "32", "--accuracy-samples", "64", "--rate", "0.01"]
    places = ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(hogwild, [str(recipe), *words, *places])
    assert left.value.code == 0
    printed = capsys.readouterr().out
    assert f"of {COMPUTING}" in printed and f"of {TORCH}" in printed and "accuracy" in printed
    found = json.loads((tmp_path / "hogwild.json").read_text())
    rates = found["samples_a_second"]
    assert set(rates) == {SHARED, COMPUTING, TORCH} and all(rate > 0 for (rate,) in rates.values())
    assert found["ratio"][COMPUTING] == pytest.approx(rates[SHARED][0] / rates[COMPUTING][0], rel=1e-3)
    rows = found["accuracy"]["rows"]
    assert [row["processes"] for row in rows] == [1, 2]
    assert all(0 <= row["validation"] <= 1 for row in rows)


def test_samples_that_make_no_batch_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(supervised(tmp_path, layers=LAYERS))
    with pytest.raises(SystemExit) as left:
        main(hogwild, [str(recipe), "--samples", "8", "--stores", str(tmp_path)])
    assert left.value.code == 2
    assert "8 samples give no batch of 8 to each of 2 processes" in capsys.readouterr().err


def test_samples_that_vary_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_labelled(tmp_path / "images", 30)
    recipe = tmp_path / "small.toml"
    text = supervised(tmp_path / "images").replace("[data]", '[data]\naugment = [{name = "flip"}]')
    recipe.write_text(text)
    with pytest.raises(SystemExit) as left:
        main(hogwild, [str(recipe), "--stores", str(tmp_path)])
    assert left.value.code == 2
    assert "has data.augment, but a method compared here" in capsys.readouterr().err
