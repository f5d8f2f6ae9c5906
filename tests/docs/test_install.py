"""Commands that install an extra, in pages, in help and in errors."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from cotswold.errors import INSTALL, install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.toml")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
    *sorted((ROOT / ".github").rglob("*.*")),
    ROOT / "Dockerfile",
]
LINE = re.compile(r"pip install +(?:-\S+ +(?:cpu +)?)*[^\s`)]*\[(\w+)\]'?")
"""A command that installs an extra."""


def test_lines_that_install_an_extra_are_those_of_errors() -> None:
    found = {
        (path.name, line[0], line[1])
        for path in TEXTS
        for line in LINE.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(found) > 8
    assert [each for each in found if each[1] != INSTALL.format(each[2])] == []
    assert {extra for _, _, extra in found} <= EXTRAS.keys()


def test_no_line_installs_from_an_index_which_has_no_release() -> None:
    wrong = re.compile(r"pip install +(?:-\S+ +)*['\"]?cotswold")
    assert [path.name for path in TEXTS if wrong.search(path.read_text(encoding="utf-8"))] == []


def test_every_error_of_a_missing_extra_says_how_to_install_it() -> None:
    raised = [
        (path.name, node)
        for path in TEXTS
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if ast.unparse(node.exc.func) == "MissingExtraError"
    ]
    assert len(raised) > 7
    assert [name for name, node in raised if "install(" not in ast.unparse(node)] == []


@pytest.mark.parametrize("extra", ["cluster", "cuda", "demo", "speech"])
def test_errors_name_extras_that_exist(extra: str) -> None:
    assert extra in EXTRAS
    assert install(extra) == f"pip install '.[{extra}]' in a checkout of Cotswold"
    sources = [path.read_text(encoding="utf-8") for path in TEXTS if path.suffix == ".py"]
    assert any(f"install('{extra}')" in each or f'install("{extra}")' in each for each in sources)
