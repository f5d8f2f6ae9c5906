"""Examples in docstrings give their stated results."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import cotswold

ROOT = Path(cotswold.__file__).parent
MODULES = sorted(
    ".".join(("cotswold", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    failures, examples = doctest.testmod(importlib.import_module(name))
    assert examples and not failures
