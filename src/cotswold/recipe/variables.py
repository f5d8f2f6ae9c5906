"""Environment variables in the paths of a recipe.

Knows: `${NAME}`. Does not know: which fields are paths. A recipe keeps `${NAME}` as written, so that a run
directory can be moved to a machine whose data lie elsewhere.
"""

from __future__ import annotations

import os
import re

from cotswold.errors import RecipeError

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(path: str) -> str:
    """``path`` with every `${NAME}` replaced by that environment variable; RecipeError if it is not set."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], "")
        if not found:
            raise RecipeError(
                f"{path!r} needs the environment variable {match[1]}, which is not set; "
                f"set it (export {match[1]}=/the/folder) or write the path out"
            )
        return found

    return _VARIABLE.sub(value, path)
