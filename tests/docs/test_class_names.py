"""Names of classes: a class of Cotswold is found by its name alone."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "cotswold"
TABLES = PACKAGE / "recipe" / "schema"
"""Recipe tables are called like what they configure."""
SHARED = frozenset(
    (
        "Evaluation",
        "Factors",
        "Layer",
        "Method",
        "Move",
        "Network",
        "Outcome",
        "Pass",
        "Request",
        "Served",
        "Start",
        "Strip",
        "Task",
        "Workers",
    )
)
"""Names that several classes still have; add none."""


def classes() -> dict[str, list[str]]:
    """Return the modules of each public top-level class, by name."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if TABLES in path.parents:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    return found


def test_a_class_name_is_used_once() -> None:
    doubles = {name: paths for name, paths in classes().items() if len(paths) > 1}
    assert {name: paths for name, paths in doubles.items() if name not in SHARED} == {}
