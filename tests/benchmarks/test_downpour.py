"""benchmarks/downpour.py: measurements, results, and resumption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from downpour import downpour
from lib.command import main

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


def status(words: list[str]) -> object:
    with pytest.raises(SystemExit) as left:
        main(downpour, words)
    return left.value.code


@pytest.mark.soak
def test_a_round_of_two_replicas_is_kept_with_its_processor_time(tmp_path: Path) -> None:
    recipe = tmp_path / "small.toml"
    draw_labelled(tmp_path / "images", 12)
    recipe.write_text(supervised(tmp_path / "images", layers=LAYERS))
    words = [str(recipe), "--rounds", "1", "--seconds", "1", "--every", "0.5"]
    words += [
        "--case",
        "two",
        "--case",
        "killed",
        "--stores",
        str(tmp_path / "stores"),
        "--out",
        str(tmp_path),
    ]
    assert status(words) == 0
    found = json.loads((tmp_path / "downpour.json").read_text())
    cell = found["cells"]["two 0"]
    assert cell["ratio"] == pytest.approx(cell["replicas"] / cell["computing"], rel=1e-3)
    assert cell["steps"] > 0 and cell["step_ms"]["servers"] > 0
    assert cell["step_ms"]["replicas, transport"] < cell["step_ms"]["replicas, all threads"]
    assert found["cells"]["killed 0"]["kills"] == 2 and found["cells"]["killed 0"]["killed"] > 0
    assert found["summary"]["two"]["ratios"] == [cell["ratio"]]
    assert status(words) == 0
    assert json.loads((tmp_path / "downpour.json").read_text())["cells"] == found["cells"]
