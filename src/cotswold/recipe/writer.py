"""A recipe as TOML text, every default written out.

Knows: that TOML has no word for what is not set. Does not know: what the fields mean. What is written here
reads back as the same recipe.
"""

from __future__ import annotations

import tomlkit

from cotswold.recipe.migration import FORMAT
from cotswold.recipe.schema import Recipe


def dump(recipe: Recipe) -> str:
    """The whole recipe as TOML, after its format; a field without a value is left out."""
    return tomlkit.dumps({"format": FORMAT, **recipe.model_dump(exclude_none=True)})


def value_text(value: object) -> str:
    """A value as TOML; raises ValueError for what TOML does not have."""
    return tomlkit.item(value).as_string()
