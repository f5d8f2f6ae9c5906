"""From a file, a shipped name or a text to a checked recipe.

Knows: TOML, overrides, where shipped recipes lie. Does not know: what a valid recipe is (schema), nor how its
mistakes are worded (complaints). Nothing in a recipe is executed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from cotswold.errors import GeometryError, RecipeError
from cotswold.recipe.complaints import complaint
from cotswold.recipe.migration import Values, migrated
from cotswold.recipe.schema import Recipe


def shipped() -> list[str]:
    """Names of the recipes that come with Cotswold."""
    folder = resources.files("cotswold.recipe") / "shipped"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load(where: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, or the shipped one of that name, with `section.key=value` overrides.

    A value is TOML (``0.1``, ``[3, 4]``, ``true``); a bare word is a text; nothing at all takes the key away.
    Words of an older format are read as today's. Raises RecipeError for a missing file, a mistake in TOML, an
    unknown key, a value of the wrong kind, a geometry that does not fit; FormatError for a newer format.
    """
    text, origin = _read(where)
    return parse(text, origin, overrides)


def parse(text: str, origin: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML text; ``origin`` names it in errors. See :func:`load`."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {error}") from error
    values = migrated(values, origin)
    for override in overrides:
        _override(values, override)
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
            return path.read_text(encoding="utf-8"), str(path)
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
    raise RecipeError(f"there is no recipe file {str(where)!r}{guess} shipped recipes are {', '.join(names)}")


def _override(values: dict[str, object], override: str) -> None:
    """Put `a.b.0.c=value` into the raw values, in place."""
    path, equals, written = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f"override {override!r} is not of the form section.key=value")
    holder: object = values
    for key in keys[:-1]:
        holder = _step(holder, key, override)
    last = keys[-1]
    if isinstance(holder, list):
        _step(holder, last, override)
        if not written.strip():
            del holder[int(last)]
        else:
            holder[int(last)] = _toml_value(written, override)
    elif isinstance(holder, dict):
        if not written.strip():
            holder.pop(last, None)
        else:
            holder[last] = _toml_value(written, override)
    else:
        raise RecipeError(f"override {override!r} goes through a value that has nothing inside")


def _step(holder: object, key: str, override: str) -> object:
    if isinstance(holder, dict):
        return holder.setdefault(key, {})
    if isinstance(holder, list):
        if key.isascii() and key.isdigit() and int(key) < len(holder):
            return holder[int(key)]
        raise RecipeError(f"override {override!r}: {key!r} must be one of 0 to {len(holder) - 1} here")
    raise RecipeError(f"override {override!r} goes through a value that has nothing inside")


def _toml_value(written: str, override: str) -> object:
    word = written.strip()
    try:
        parsed = tomllib.loads(f"value = {word}")
    except tomllib.TOMLDecodeError as error:
        if word[0] in "[{\"'" or "\n" in word:
            raise RecipeError(f"override {override!r} does not hold a TOML value: {error}") from error
        return word  # a bare word: training.strategy=joint
    if parsed.keys() != {"value"}:
        raise RecipeError(f"override {override!r} holds more than one value; give each its own --set")
    return parsed["value"]
