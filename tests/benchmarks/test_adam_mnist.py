"""benchmarks/adam_mnist.py: tuning, comparison and pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from adam_mnist import adam_mnist, summary
from cotswold.bench.measure import Document
from lib.command import main

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


@pytest.mark.soak
def test_a_rate_is_tuned_and_a_replica_is_killed_in_one_of_a_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "small.toml"
    draw_labelled(tmp_path / "images", 30)
    recipe.write_text(supervised(tmp_path / "images", layers=LAYERS))
    words = [str(recipe), "--rate", "0.01", "--epochs", "3", "--case", "killed", "--pairs", "1"]
    words += ["--seconds", "1.5", "--every", "1"]
    words += ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(adam_mnist, words)
    assert left.value.code == 0
    assert "with replicas killed" in capsys.readouterr().out
    found = json.loads((tmp_path / "adam-mnist.json").read_text())
    assert len(found["cells"]) == 3
    assert 1 <= len(found["cells"]["tune, asynchronous, 0.01"]["all_validation"]) <= 3  # a slow judge skips
    assert (found["cells"]["killed, 0"]["kills"], found["cells"]["undisturbed, 0"]["kills"]) == (1, 0)
    assert found["summary"]["killed"]["pairs"] == 1


def test_pairs_are_compared_seed_by_seed_in_points() -> None:
    def cell(test: float, kills: int = 0) -> Document:
        return {"test": test, "kills": kills, "samples_a_second": 100.0 - kills}

    cells = {
        "killed, 0": cell(0.990, 5),
        "undisturbed, 0": cell(0.991),
        "undisturbed, 1": cell(0.980),
        "killed, 1": cell(0.982, 5),
        "undisturbed, 2": cell(0.5),
    }
    cells["synchronous, 0"] = {**cell(0.98), "rate": 0.1, "validation": 0.97}
    (row,) = list(summary(cells)["rows"])  # type: ignore[call-overload]  # a table of JSON
    assert (row["test"], row["paper"]) == (0.98, 0.9939)
    found = summary(cells)["killed"]
    assert isinstance(found, dict)
    assert (found["points"], found["pairs"], found["kills"]) == (pytest.approx(0.05), 2, 10)
    assert found["throughput"] == 0.95
