"""Write a recipe as TOML text, with every default.

Knows: TOML cannot express unset values. Does not know: the meaning of fields. The text reads back as the same
recipe.
"""

from __future__ import annotations

import tomlkit

from cotswold.recipe.migration import FORMAT
from cotswold.recipe.schema import Recipe


def dump(recipe: Recipe) -> str:
    """Return the whole recipe as TOML, with its format; fields without a value are omitted.

    Args:
        recipe: the recipe.
    """
    return tomlkit.dumps({"format": FORMAT, **recipe.model_dump(exclude_none=True)})


def value_text(value: object) -> str:
    """Return a value as TOML; raises ValueError for a value that TOML cannot express."""
    return tomlkit.item(value).as_string()
