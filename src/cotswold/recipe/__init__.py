"""Recipes: one TOML file says what is trained, on what, how; nothing in it is executed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.recipe.comments import commented as commented
    from cotswold.recipe.migration import FORMAT as FORMAT
    from cotswold.recipe.migration import first_identity as first_identity
    from cotswold.recipe.migration import format_of as format_of
    from cotswold.recipe.reader import from_values as from_values
    from cotswold.recipe.reader import load as load
    from cotswold.recipe.reader import parse as parse
    from cotswold.recipe.reader import shipped as shipped
    from cotswold.recipe.reference import explain as explain
    from cotswold.recipe.schema import Recipe as Recipe
    from cotswold.recipe.variables import expand as expand
    from cotswold.recipe.writer import dump as dump

_HOME = {
    "FORMAT": "migration",
    "Recipe": "schema",
    "commented": "comments",
    "dump": "writer",
    "expand": "variables",
    "explain": "reference",
    "first_identity": "migration",
    "format_of": "migration",
    "from_values": "reader",
    "load": "reader",
    "parse": "reader",
    "shipped": "reader",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.recipe.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.recipe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
