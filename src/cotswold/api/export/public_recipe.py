"""A recipe as others may read it: without the folders of its author's machine; a sentence on its precision.

Knows: which texts are paths, names of precisions. Does not know: files of exports.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.recipe import Recipe


def public_recipe(recipe: Recipe) -> str:
    """Return a recipe as TOML, with the last part of each absolute path alone."""
    import tomllib

    import tomlkit

    from cotswold.recipe import dump

    return tomlkit.dumps(_without_folders(tomllib.loads(dump(recipe))))


def precision_of(recipe: Recipe) -> str:
    """Return the precision of the training: "32", "bf16-mixed" or "16-mixed"."""
    return str(getattr(recipe.training, "precision", "32"))


def precision_note(recipe: Recipe) -> str:
    """Return a sentence about the weights after training in mixed precision; an empty text otherwise."""
    name = precision_of(recipe)
    if name == "32":
        return ""
    return f"The run was trained in mixed precision ({name}); the exported weights are float32."


def public_name(text: str) -> str:
    """Return a text, or the last part of an absolute path.

    >>> public_name("/home/ada/digits.npz"), public_name("builtin:demo")
    ('digits.npz', 'builtin:demo')
    """
    return PurePath(text).name if text.startswith(("/", "~")) else text


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_folders(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return public_name(value) if isinstance(value, str) else value
