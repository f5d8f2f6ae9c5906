"""benchmarks/distbelief_images.py: four ways with separate runs, and their report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.training.small_recipes import draw_labelled, greedy, supervised

from distbelief_images import distbelief_images, summary, tuned
from lib.command import main
from lib.distbelief.images import ARMS


@pytest.mark.soak
def test_four_ways_are_tuned_judged_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_labelled(tmp_path / "images", 24)
    split = "whiten = false, test = 0.2, validation"
    filters, recipe = tmp_path / "filters.toml", tmp_path / "images.toml"
    filters.write_text(greedy(tmp_path / "images").replace("validation", split))
    text = supervised(
        tmp_path / "images",
        layers="",
        network=f'backbone = "{filters}"\nfinetune = true',
        data="validation = 0.2\ntest = 0.2",
        more='[objective]\nloss = "bce_with_logits"',
    )
    recipe.write_text(text)
    words = [str(recipe), "--filters", str(filters), "--rate", "0.01", "--rate", "0.05", "--epochs", "2"]
    words += ["--filter-epochs", "1", "--seeds", "2", "--minutes", "5", "--out", str(tmp_path / "out")]
    words += ["--runs", str(tmp_path / "runs"), "--stores", str(tmp_path / "stores")]
    for _ in range(2):
        with pytest.raises(SystemExit) as left:
            main(distbelief_images, words)
        assert left.value.code == 0
    said = capsys.readouterr()
    assert said.err.count("filters; 0 ...") == 1 and "held-out images" in said.out
    found = json.loads((tmp_path / "out" / "distbelief-images.json").read_text())
    assert len(found["cells"]) == 3 + 2 * len(ARMS) + 2 * len(ARMS)
    assert [row["way"] for row in found["summary"]["rows"]] == [*ARMS]
    for name in ARMS:
        cell = found["cells"][f"{name}; 1"]
        assert len(cell["accuracies"]) == 3 and cell["validation"] == cell["accuracies"][-1]
        assert cell["samples"] > 0 and 0 <= cell["test"] <= 1
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"filters-0", "filters-1", "filters-1000"}
    page = (tmp_path / "out" / "distbelief-images.html").read_text()
    assert page.count("<svg") == 1 and "random filters, kept" in page


def test_the_rate_is_the_best_on_validation_images_and_gains_are_seed_by_seed() -> None:
    cells: dict[str, Any] = {}
    for name, (low, high) in zip(ARMS, ((0.3, 0.4), (0.3, 0.3), (0.2, 0.1), (0.1, 0.1)), strict=True):
        for rate, validation in ((0.1, low), (0.01, high)):
            cells[f"tune; {name}; {rate:g}"] = {"rate": rate, "validation": validation}
    names = [*ARMS]
    assert [tuned(cells, name) for name in names] == [0.01, 0.01, 0.1, 0.01]
    for name, tests in zip(names, ((0.4, 0.5), (0.3, 0.3), (0.2, 0.2), (0.1, 0.2)), strict=True):
        for seed, test in enumerate(tests):
            cells[f"{name}; {seed}"] = {
                "rate": 0.1,
                "test": test,
                "mean_over_classes": 0.1,
                "validation": 0.2,
            }
    told: Any = summary(cells)
    assert [gain["points"] for gain in told["gains"]] == [15.0, 5.0]
    assert told["gains"][0]["each"] == [10.0, 20.0] and told["rows"][0]["test"] == 0.45
