"""benchmarks/staleness.py: rates are tuned, seeds are evaluated, a plot and cells are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from cotswold.bench.measure import Document
from lib.command import main
from staleness import RATES, staleness, summary

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


def test_rates_are_tuned_and_the_best_is_run_with_other_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "small.toml"
    draw_labelled(tmp_path / "images", 30)
    recipe.write_text(supervised(tmp_path / "images", layers=LAYERS))
    words = [str(recipe), "--replicas", "1", "--replicas", "9", "--rule", "adagrad", "--seeds", "2"]
    words += ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(staleness, words)
    assert left.value.code == 0
    assert "replicas that work productively" in capsys.readouterr().out
    found = json.loads((tmp_path / "staleness.json").read_text())
    tried = [key for key in found["cells"] if key.startswith("tune, adagrad, 9,")]
    assert len(tried) == len(RATES["adagrad"])
    one, nine = found["summary"]["rows"]
    assert (one["replicas"], nine["replicas"], nine["seeds"]) == (1, 9, 2)
    assert one["staleness"] <= 1 < nine["staleness"]
    best = max(found["cells"][key]["validation"] for key in tried)
    assert nine["rate"] in [
        cell["rate"] for cell in map(found["cells"].get, tried) if cell["validation"] == best
    ]
    assert (tmp_path / "staleness.svg").is_file()


def test_replicas_are_productive_until_the_accuracy_falls() -> None:
    def cell(accuracy: float) -> Document:
        return {"rate": 0.1, "staleness": 1.0, "validation": accuracy, "test": accuracy}

    of = {1: 0.98, 10: 0.975, 100: 0.90, 1000: 0.98}
    cells = {f"sgd, {replicas}, {seed}": cell(value) for replicas, value in of.items() for seed in (0, 1)}
    assert summary(cells)["productive"] == {"sgd": 10}
