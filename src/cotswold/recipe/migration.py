"""From the words of an older format to today's.

Knows: the formats that Cotswold has written into the directories of runs, and what changed from each to the
next. Does not know: files, what the words mean.

What a run keeps (its recipe, its events, the state in its checkpoints) is written in the words of one format,
and says which. Recipes of an older one are read through here and nowhere else, so that a name changes in one
place; the names of events and states have not changed yet. What says no format is of the first. To change a
name: raise ``FORMAT`` and add a step.

| format | since |
|---|---|
| 1 | the words up to version 0.1; a run is known by a hash of its recipe |
| 2 | a run has an id of its own, and its recipe says the format |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from cotswold.errors import FormatError
from cotswold.recipe.bounds import shown

FORMAT = 2
"""The format that is written."""

Values = dict[str, Any]
"""A recipe as TOML has it."""
Step = Callable[[Values], None]
"""Turns the words of one format into those of the next, in place."""

RECIPE_STEPS: dict[int, Step] = {}
"""What changed in recipes from a format to the next; nothing did where there is none."""


def migrated(values: Values, origin: str, steps: Mapping[int, Step] = RECIPE_STEPS) -> Values:
    """A recipe in today's words and without its format; ``origin`` names it in errors.

    Raises FormatError for a format that this version does not know.
    """
    first = format_of(values, origin)
    values = {name: value for name, value in values.items() if name != "format"}
    for number in range(first, FORMAT):
        if number in steps:
            steps[number](values)
    return values


def format_of(values: Mapping[str, object], origin: str) -> int:
    """The format that a recipe, an event or a state says it has; raises FormatError for an unknown one."""
    found = values.get("format", 1)
    if type(found) is not int or not 1 <= found <= FORMAT:
        raise FormatError(
            f"{origin} is of format {shown(found, 20)}, and this Cotswold reads 1 to {FORMAT}; "
            "use the version that wrote it, or a newer one"
        )
    return found


_FIELDS_1: Mapping[str, str] = {
    "": "name data network objective training",
    "data": (
        "source store include exclude labels splits validation test size colour contrast whiten band unit "
        "dtype limit"
    ),
    "network": "stacks layers start tune",
    "stacks": "field step padding block maps pool norm keep sparsity epochs rate",
    "objective": "sparsity ramp epsilon loss",
    "training": "strategy batch epochs rate momentum decay schedule warmup patience seed",
    "local": "type channels field step padding block",
    "convolution": "type channels field step padding",
    "full": "type units",
    "pool": "type kind size step",
    "normalisation": "type kind size",
    "dropout": "type probability",
    "relu": "type",
    "tanh": "type",
    "sigmoid": "type",
}
"""The fields of format 1 on which a checkpoint depended, in the order in which they were hashed."""


def first_identity(values: Mapping[str, Any]) -> str:
    """What checkpoints of format 1 call their run: a hash of the fields of its recipe, as `recipe.toml` has
    them; those without a value, which TOML leaves out, were hashed as null."""
    network = values.get("network", {})
    known = {
        **_first("", values),
        **{name: _first(name, values.get(name, {})) for name in ("data", "objective", "training")},
        "network": {
            **_first("network", network),
            "stacks": [_first("stacks", each) for each in network.get("stacks", [])],
            "layers": [_first(each["type"], each) for each in network.get("layers", [])],
        },
    }
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def _first(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) for name in _FIELDS_1[section].split()}
