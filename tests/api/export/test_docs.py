"""docs/export.md: its code runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.support.demo_runs import DemoRuns
from torch import nn

import cotswold
from cotswold import training
from cotswold.recipe.schema import BatchTraining

PAGE = Path(__file__).parents[3] / "docs" / "export.md"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = DemoRuns(tmp_path)
    demo.write()
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    data = torch.randn(10, 4), torch.arange(10) % 2
    own = training.open_module_job(
        module, data, loss="cross_entropy", directory="runs/own", settings=BatchTraining(max_iterations=1)
    )
    for job in (training.open_job(demo.layers_recipe, "runs/digits", stores=demo.stores), own):
        job.train(watch=lambda event: None, stop=cotswold.Stop())
    names: dict[str, object] = {}
    codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for code in codes:
        exec(compile(code, PAGE.name, "exec"), names)
    assert {"digits.pt2", "own.pt2", "own.pt", "own.pt.json", "README.md"} <= {
        each.name for each in tmp_path.iterdir()
    }
    said = capsys.readouterr().out
    assert "level" in said or "upright" in said
    assert "license: " in said
