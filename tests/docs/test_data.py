"""docs/data.md: its recipe trains, its loop learns."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import cotswold

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Path("speech").mkdir()
    for number in range(40):
        labels = np.full(20, number % 3)
        frames = random.normal(size=(20, 6)) + labels[:, None]
        np.save(f"speech/{number:02}.npy", frames.astype(np.float32))
        np.save(f"speech/{number:02}.labels.npy", labels)
    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("speech.toml").write_text(recipe)
    run = cotswold.train_recipe("speech.toml", "runs/speech")
    found = cotswold.evaluate(run)
    assert run.recipe.data.type == "frames"
    assert isinstance(found, cotswold.analysis.Classification) and found.accuracy > 0.9


def test_the_loop_of_the_page_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.arange(400) % 3
    np.savez("table.npz", x=np.eye(3, dtype=np.float32)[labels], labels=labels)
    (loop,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    model = torch.nn.Linear(3, 3)
    names = {"model": model, "optimiser": torch.optim.SGD(model.parameters(), lr=0.5)}
    exec(compile(loop, "data.md", "exec"), names)
    assert names["store"].splits["train"] == 380  # type: ignore[attr-defined]  # made by the page
    answers = model(names["x"].flatten(1)).argmax(1)  # type: ignore[attr-defined]  # its last batch
    assert torch.equal(answers, names["y"])  # type: ignore[arg-type]  # and the classes
