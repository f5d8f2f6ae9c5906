"""Recipes as TOML text: read from a file, a shipped name or a text, validate, and write with every default.

Knows: the order of checks, that TOML cannot express unset values. Does not know: what a valid recipe is
(schema), upper bounds (bounds), error messages (error_messages), the meaning of fields. Nothing in a recipe
is executed. What is written reads back as the same recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tomllib import TOMLDecodeError

import tomlkit
from pydantic import ValidationError

from cotswold.errors import GeometryError, RecipeError, UnknownStrategyError
from cotswold.recipe import bounds as limits
from cotswold.recipe.bounds import shortened
from cotswold.recipe.error_messages import describe_error
from cotswold.recipe.files import ShippedFiles
from cotswold.recipe.migration import FORMAT, Values, migrate
from cotswold.recipe.overrides import override_all
from cotswold.recipe.plugins import join_strategies
from cotswold.recipe.schema import Recipe
from cotswold.recipe.schema.training import strategy_of

Tell = Callable[[str], None]
"""Receives a sentence for the author of the recipe."""

_OPTIMIZER = "training.optimizer"
_FILES = ShippedFiles("cotswold.recipe", "recipe", RecipeError)


def ignore_message(sentence: str) -> None:
    """Ignore the sentence."""


def shipped_names() -> list[str]:
    """Return the names of the recipes that ship with Cotswold, sorted."""
    return _FILES.names()


def load(where: str | Path, overrides: Sequence[str] = (), tell: Tell = ignore_message) -> Recipe:
    """Return the recipe in a TOML file, or the shipped one of that name.

    A recipe of an older format is migrated. An override of ``training.epochs``, ``training.relative_rate`` or
    ``objective.sparsity`` applies to every stack; it replaces a stack's own value unless that is overridden
    too.

    Args:
        where: path of a file, or name of a shipped recipe.
        overrides: changed fields of the current format, ``section.key=value``. The value is TOML; a bare word
            is a text; an empty value removes the field.
        tell: receives a sentence for each override that replaces values of single stacks.

    Returns:
        The validated recipe.

    Raises:
        RecipeError: if the file is missing or is not TOML, if a key is unknown or a value has the wrong type,
            if the geometry does not fit, or if no machine could hold the network. It is an
            UnknownStrategyError if the strategy is unknown.
        FormatError: for a newer format.
    """
    text, origin = _FILES.text(where)
    return parse(text, origin, overrides, tell)


def parse(
    text: str, origin: str = "recipe", overrides: Sequence[str] = (), tell: Tell = ignore_message
) -> Recipe:
    """Return the recipe in a TOML text.

    Args:
        text: the TOML text.
        origin: name of the text in error messages.
        overrides: see `load`.
        tell: see `load`.

    Returns:
        The validated recipe.

    Raises:
        RecipeError: see `load`.
        FormatError: for a newer format.
    """
    try:
        values = limits.toml(text)
    except TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not TOML: {shortened(str(error), 300)}") from error
    except ValueError as error:
        raise RecipeError(f"{origin} is not a recipe: {shortened(str(error), 300)}") from error
    is_written_by_run = "format" in values
    values = migrate(values, origin)
    sentences = override_all(values, overrides)
    recipe = _checked(values, origin, text, overrides)
    if getattr(recipe.training, "optimizer", None) == "custom" and (
        not is_written_by_run or any(each.partition("=")[0].strip() == _OPTIMIZER for each in overrides)
    ):
        raise RecipeError(
            f'{origin}: {_OPTIMIZER} = "custom" is written by runs of a Python program that gives an '
            "optimiser; name an optimizer, or remove it and call train_recipe(..., optimizer=...)"
        )
    for sentence in sentences:  # an invalid recipe only gets its error
        tell(sentence)
    return recipe


def from_values(values: Values, origin: str, also: Collection[str] = ()) -> Recipe:
    """Return the recipe of values as in TOML.

    Args:
        values: tables and fields of a recipe.
        origin: name of the values in error messages.
        also: fields of other tables that the caller accepts together with those of `[training]`; errors about
            unknown keys list them too.

    Returns:
        The validated recipe.

    Raises:
        RecipeError: see `load`.
        FormatError: for a newer format.
    """
    return _checked(migrate(values, origin), origin, also=also)


def _checked(
    values: Values,
    origin: str,
    text: str = "",
    overrides: Sequence[str] = (),
    also: Collection[str] = (),
) -> Recipe:
    refused = join_strategies()
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        training = values.get("training")
        strategy = training.get("strategy") if isinstance(training, dict) else None
        unknown = isinstance(strategy, str) and strategy_of(training) is None
        kind = UnknownStrategyError if unknown else RecipeError
        if isinstance(strategy, str) and unknown and strategy in refused:
            raise kind(f"{origin} names strategy {strategy}; {refused[strategy]}") from error
        overridden = {each.partition("=")[0].strip() for each in overrides}
        raise kind(f"{origin}{describe_error(error, text, overridden, Recipe, also)}") from error
    if recipe.input_known:
        try:
            recipe.stack_geometries()
        except GeometryError as error:
            raise RecipeError(f"{origin}: {error}") from error
    return recipe


def dump(recipe: Recipe) -> str:
    """Return the whole recipe as TOML, with its format; fields without a value are omitted.

    Args:
        recipe: the recipe.
    """
    return tomlkit.dumps({"format": FORMAT, **recipe.model_dump(exclude_none=True)})


def value_text(value: object) -> str:
    """Return a value as TOML; raises ValueError for a value that TOML cannot express."""
    return tomlkit.item(value).as_string()
