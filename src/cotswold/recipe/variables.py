"""Environment variables in the paths of a recipe.

Knows: `${NAME}`. Does not know: which fields are paths. A recipe keeps `${NAME}` as written, so that a run
directory can move to a machine with another location of the data.
"""

from __future__ import annotations

import os
import re

from cotswold.errors import RecipeError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(path: str) -> str:
    """Replace every `${NAME}` by that environment variable.

    Args:
        path: a path of a recipe.

    Raises:
        RecipeError: if a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], "")
        if not found:
            raise RecipeError(
                f"{path!r} needs the environment variable {match[1]}, which is not set; "
                f"set it (export {match[1]}=/the/folder) or write the full path"
            )
        return found

    return _VARIABLE.sub(value, path)
