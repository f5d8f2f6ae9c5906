"""The page about meshes is true, on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.mesh.ranks import on_ranks

PAGE = Path(__file__).parents[2] / "docs" / "mesh.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def _run(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block {index}" for index in range(len(BLOCKS))])
def test_every_block_of_the_page_about_meshes_runs(block: str) -> None:
    # some blocks have a grid of one row, some of one column
    on_ranks(2, _run, block)
