"""docs/batch.md: its recipe trains and counts, its program runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import cotswold
from cotswold.api.plan.dry_run import plan

PAGE = (Path(__file__).parents[2] / "docs" / "batch.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.arange(400) % 4
    rows = np.random.default_rng(0).normal(size=(400, 12)) + 3 * np.eye(4, 12)[labels]
    np.savez("digits.npz", x=rows.astype(np.float32), labels=labels)
    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("digits.toml").write_text(recipe)
    run = cotswold.train_recipe("digits.toml", "runs/digits")
    found = cotswold.evaluate(run)
    assert isinstance(found, cotswold.analysis.Classification) and found.accuracy > 0.8
    assert plan("digits.toml", overrides=["cluster.workers=4"])["processes"] == 6
    page = cotswold.report(run).read_text()
    assert "Full-batch optimisation" in page and "Evaluations of value and gradient" in page


def test_the_program_of_the_page_runs_in_fewer_than_20_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    program, _ = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)  # the other needs several machines
    assert program.count("\n") < 20
    names: dict[str, object] = {}
    exec(compile(program, "batch.md", "exec"), names)
    run = names["run"]
    assert isinstance(run, cotswold.Run) and run.status == "finished"
    assert run.loss is not None and run.loss < 0.3
