"""docs/python.md: its code runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw, draw_labelled, greedy, supervised

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SLOW = "Several processes"


def blocks(text: str) -> dict[str, list[str]]:
    """Return the Python of each section, by heading."""
    found = {}
    for section in text.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        found[heading] = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return found


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a folder with the files that the page names."""
    monkeypatch.chdir(tmp_path)
    draw_labelled(Path("photographs"), 24)
    draw(Path("faces"), 10, level=True, first=300)
    draw(Path("others"), 10, level=False, first=400)
    Path("mine.toml").write_text(greedy(Path("photographs")))
    Path("labelled.toml").write_text(supervised(Path("photographs")))


def run_all(sections: dict[str, list[str]]) -> None:
    names: dict[str, object] = {}
    for heading, codes in sections.items():
        for code in codes:
            exec(compile(code, f"{PAGE.name}, {heading}", "exec"), names)


def test_the_code_of_the_page_runs(desk: None) -> None:
    sections = blocks(PAGE.read_text())
    assert SLOW in sections and sum(map(len, sections.values())) >= 10
    run_all({heading: codes for heading, codes in sections.items() if heading != SLOW})


@pytest.mark.slow
def test_the_code_for_several_processes_runs(desk: None) -> None:
    run_all({"imports": ["import cotswold"], SLOW: blocks(PAGE.read_text())[SLOW]})
