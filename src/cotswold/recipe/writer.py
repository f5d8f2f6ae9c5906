"""A recipe as TOML text, every default written out.

Knows: the part of TOML that a recipe needs. Does not know: what the fields mean. What is written here reads
back as the same recipe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from cotswold.recipe.migration import FORMAT
from cotswold.recipe.schema import Recipe

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump(recipe: Recipe) -> str:
    """The whole recipe as TOML, after its format; a field without a value is left out, for TOML has no word
    for it."""
    return "\n".join(_table((), {"format": FORMAT, **recipe.model_dump(exclude_none=True)})) + "\n"


def _table(path: tuple[str, ...], table: Mapping[str, object]) -> list[str]:
    lines, below = [], []
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            below += ["", f"[{_dotted(here)}]", *_table(here, value)]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                below += ["", f"[[{_dotted(here)}]]", *_table(here, item)]
        else:
            lines.append(f"{_dotted((key,))} = {value_text(value)}")
    return lines + below


def value_text(value: object) -> str:
    """A value as TOML; raises TypeError for what no recipe holds."""
    if isinstance(value, str):
        # JSON escapes what TOML escapes, the same way, but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(value_text(item) for item in value)}]"
    raise TypeError(f"a recipe holds no {type(value).__name__}")


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(key if _BARE.fullmatch(key) else value_text(key) for key in path)
