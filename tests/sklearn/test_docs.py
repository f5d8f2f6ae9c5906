"""docs/sklearn.md: its code runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "sklearn.md"


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    codes = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    for code in codes:
        exec(compile(code, PAGE.name, "exec"), names)
    searched, scored = capsys.readouterr().out.splitlines()
    assert float(searched.split()[-1]) > 0.93
    assert float(scored) > 0.93
