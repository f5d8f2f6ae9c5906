"""The page about layers is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block {index}" for index in range(len(BLOCKS))])
def test_every_block_of_the_page_about_layers_runs(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})


def test_the_page_shows_every_module() -> None:
    from cotswold import nn

    page = PAGE.read_text(encoding="utf-8")
    assert BLOCKS
    assert [name for name in nn.__all__ if name not in page] == []
