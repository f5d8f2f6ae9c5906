"""docs/optimisers.md: its blocks run, in one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).parents[2] / "docs" / "optimisers.md").read_text(encoding="utf-8")


def test_the_blocks_of_the_page_train_and_minimise(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "optimisers.md", "exec"), names)
    assert float(names["loss"]) < 0.01
    assert torch.allclose(names["point"], torch.ones(2, dtype=torch.float64), atol=1e-6)
    assert "Iteration(number=60" in capsys.readouterr().out
