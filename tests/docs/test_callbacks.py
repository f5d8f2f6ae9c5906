"""docs/callbacks.md: its code runs, and its tables name the hooks and the built-in callbacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.training.runs import events, last

import cotswold
from cotswold.run import RunDirectory
from cotswold.training.callbacks.base import HOOKS

TEXT = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(code, "callbacks.md", "exec"), names)
    run = RunDirectory.open(tmp_path / "runs" / "called")
    kinds = ("weight_change", "gradient_norms", "learning_rates")
    assert all(events(run, kind) for kind in kinds) and not events(run, "callback_failed")
    assert {"callbacks.WeightChange.before", "raw.1.weight"} <= set(last(run.checkpoints).names)


def test_the_table_lists_every_hook_and_the_page_every_callback() -> None:
    assert set(re.findall(r"^\| `(on_\w+)`", TEXT, flags=re.MULTILINE)) == set(HOOKS)
    own = {"Callback", "CallbackContext", "StopTraining"}
    assert (
        set(re.findall(r"^\*\*`(\w+)\(", TEXT, flags=re.MULTILINE)) == set(cotswold.callbacks.__all__) - own
    )
