"""From a file, a shipped name or a text to a checked recipe.

Knows: where shipped recipes lie, the order of checks. Does not know: what a valid recipe is (schema), what is
too much (bounds), how mistakes are worded (complaints). Nothing in a recipe is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from tomllib import TOMLDecodeError

from pydantic import ValidationError

from cotswold.errors import GeometryError, RecipeError
from cotswold.recipe import bounds
from cotswold.recipe.bounds import shortened, shown
from cotswold.recipe.complaints import complaint
from cotswold.recipe.migration import Values, migrated
from cotswold.recipe.overrides import override_all
from cotswold.recipe.schema import Recipe

Tell = Callable[[str], None]
"""Hears a sentence for whoever gave the overrides."""


def _silent(sentence: str) -> None:
    """Hears nothing."""


def shipped() -> list[str]:
    """Names of the recipes that come with Cotswold."""
    folder = resources.files("cotswold.recipe") / "shipped"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load(where: str | Path, overrides: Sequence[str] = (), tell: Tell = _silent) -> Recipe:
    """The recipe in a TOML file, or the shipped one of that name, with `section.key=value` overrides.

    A value is TOML (``0.1``, ``[3, 4]``, ``true``); a bare word is a text; nothing at all takes the key away.
    Words of an older format are read as today's. An override of ``training.epochs``, ``training.rate`` or
    ``objective.sparsity`` is for every stack, also for one with a value of its own, unless that is overridden
    as well; ``tell`` hears which. Raises RecipeError for a missing file, a mistake in TOML, an unknown key, a
    value of the wrong kind, a geometry that does not fit, and for what no machine could hold; FormatError for
    a newer format.
    """
    text, origin = _read(where)
    return parse(text, origin, overrides, tell)


def parse(text: str, origin: str = "recipe", overrides: Sequence[str] = (), tell: Tell = _silent) -> Recipe:
    """The recipe in a TOML text; ``origin`` names it in errors. See :func:`load`."""
    try:
        values = bounds.toml(text)
    except TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {shortened(str(error), 300)}") from error
    except ValueError as error:
        raise RecipeError(f"{origin} is no recipe: {shortened(str(error), 300)}") from error
    values = migrated(values, origin)
    for sentence in override_all(values, overrides):
        tell(sentence)
    return _checked(values, origin, text, overrides)


def from_values(values: Values, origin: str) -> Recipe:
    """The recipe of values that a TOML text would have; raises as :func:`parse`."""
    return _checked(migrated(values, origin), origin)


def _checked(values: Values, origin: str, text: str = "", overrides: Sequence[str] = ()) -> Recipe:
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        overridden = {each.partition("=")[0].strip() for each in overrides}
        raise RecipeError(f"{origin}{complaint(error, text, overridden)}") from error
    if recipe.data.store is None:  # a store brings its own size
        try:
            recipe.stack_geometries()
        except GeometryError as error:
            raise RecipeError(f"{origin}: {error}") from error
    return recipe


def _read(where: str | Path) -> tuple[str, str]:
    path = Path(where)
    names = shipped()
    if path.is_file():
        try:
            return bounds.read(path), str(path)
        except UnicodeDecodeError as error:
            raise RecipeError(f"{path} is not a text in UTF-8; a recipe is a TOML file") from error
        except OSError as error:
            raise RecipeError(f"{path} cannot be read: {error.strerror}") from error
    name = str(where).removesuffix(".toml")
    if name in names:
        file = resources.files("cotswold.recipe") / "shipped" / f"{name}.toml"
        return file.read_text(encoding="utf-8"), f"{name}.toml"
    if path.is_dir():
        raise RecipeError(f"{path} is a folder; name a recipe's TOML file")
    close = get_close_matches(name, names, n=1)
    guess = f"; did you mean {close[0]}?" if close else ";"
    raise RecipeError(
        f"there is no recipe file {shown(str(where), 200)}{guess} shipped recipes are {', '.join(names)}"
    )
