"""Texts in the source: every literal, with `…` in the place of values.

Knows: literals and f-strings of Python. Does not know: which of them are errors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cotswold

SOURCE = Path(cotswold.__file__).parent
VALUE = "…"
_CONSTANT_LEAST = 12
"""Shortest constant part by which a message is recognised."""


@cache
def texts() -> tuple[str, ...]:
    """Return all texts of the package; docstrings are left out."""
    return tuple(text for path in sorted(SOURCE.rglob("*.py")) for text in _texts(path))


def occurs(message: str) -> bool:
    """True if a text of the source has the constant parts of a message, in this order.

    Raises ValueError for a message without a constant part that is long enough to recognise it.
    """
    parts = [part.strip(" ;:,.") for part in message.split(VALUE)]
    if max(map(len, parts)) < _CONSTANT_LEAST:
        raise ValueError(
            f"{message!r} has no constant part of {_CONSTANT_LEAST} characters; quote more of it"
        )
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in texts())


def _texts(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
        elif isinstance(node, ast.Expr):  # a docstring
            skipped.add(id(node.value))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
