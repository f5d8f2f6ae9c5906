"""Format numbers of runs, and migrations of recipes from older formats.

Knows: the format that this version writes, and the migration step of each older format. Does not know: files,
the meaning of fields.

A run's recipe, events and checkpoints have a format number. An event or a state without one has format 1; a
recipe without one, as users write them, has the current format. All older recipes are read through this
module. To rename a field: raise ``FORMAT`` by 1 and add a step to ``RECIPE_STEPS``.

| format | since |
|---|---|
| 1 | version 0.1.0 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from cotswold.errors import FormatError
from cotswold.recipe.bounds import shorten_value

FORMAT = 1
"""The format that this version writes."""

Values = dict[str, Any]
"""A recipe as TOML values."""
Step = Callable[[Values], None]
"""Changes a recipe of one format to the next, in place."""

RECIPE_STEPS: dict[int, Step] = {}
"""Migration steps by the format that they read. A format without a step needs no change."""


def migrate(values: Values, origin: str) -> Values:
    """Return a recipe in the current format, without its format number; ``origin`` names it in errors.

    Raises FormatError for a format that this version does not know.
    """
    first = format_of({"format": FORMAT, **values}, origin)
    values = {name: value for name, value in values.items() if name != "format"}
    if first == FORMAT:
        return values
    values = deepcopy(values)
    for number in range(first, FORMAT):
        if number in RECIPE_STEPS:
            RECIPE_STEPS[number](values)
    return values


def format_of(values: Mapping[str, object], origin: str) -> int:
    """Return the format number of a recipe, an event or a state.

    Args:
        values: The recipe, event or state; without ``format`` its number is 1.
        origin: The file, for error messages.

    Raises:
        FormatError: if no version, or a newer version, wrote this format.
    """
    found = values.get("format", 1)
    if type(found) is not int or found < 1:
        raise FormatError(
            f"{origin} has format {shorten_value(found, 20)}, which no version of Cotswold writes; "
            "it must be an integer from 1 on"
        )
    if found > FORMAT:
        raise FormatError(
            f"{origin} was written by a newer version of Cotswold: it has format {shorten_value(found, 20)}, "
            f"and this version reads up to {FORMAT}; install the newer version"
        )
    return found
