"""The result of the benchmark of the recipe `demo`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import demo
from lib.command import main


def test_the_result_has_commit_machine_and_the_mean_of_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seed_result(folder: Path, seed: int) -> dict[str, object]:
        return {"seed": seed, "labels": [1, 2], "few_labels": {"pixels": {"mean": [0.1 * seed, 0.5]}}}

    monkeypatch.setattr(demo, "seed_result", seed_result)
    with pytest.raises(SystemExit) as left:
        main(demo.demo, [str(tmp_path / "runs"), "--out", str(tmp_path / "results")])
    assert left.value.code == 0
    found = json.loads((tmp_path / "results" / "demo.json").read_text())
    assert {"commit", "changed", "load"} <= found.keys() and found["machine"]["processor"]
    assert (found["bench"], found["labels"]) == ("demo", [1, 2])
    assert found["accuracy_mean_of_seeds"] == {"pixels": [0.1, 0.5]}
    assert [each["seed"] for each in found["seeds"]] == [0, 1, 2]
