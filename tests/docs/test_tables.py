"""docs/tables.md: its recipe trains, its programs run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import cotswold

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def test_the_recipe_of_the_page_trains_and_its_programs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    jobs = random.choice(["clerk", "cook", "nurse"], 500)
    ages = random.integers(20, 70, 500)
    lines = ['"age";"job";"duration";"y"'] + [
        f'{age};"{job}";{number};"{"yes" if (age > 45) == (job == "cook") else "no"}"'
        for number, (age, job) in enumerate(zip(ages, jobs, strict=True))
    ]
    Path("bank.csv").write_text("\n".join(lines))
    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    Path("bank.toml").write_text(recipe)
    run = cotswold.train_recipe("bank.toml", "runs/bank")
    evaluated = cotswold.evaluate(run)
    assert isinstance(evaluated, cotswold.analysis.Classification) and evaluated.split == "test"
    assert evaluated.accuracy > 0.8
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(program, "tables.md", "exec"), names)
    found = names["found"]
    assert isinstance(found, cotswold.Predictions) and len(found) == 500 and not found.notes
    inputs = names["inputs"]
    assert isinstance(inputs, np.ndarray) and inputs.shape == (375, 4)
