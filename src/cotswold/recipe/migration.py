"""From the words of an older format to today's.

Knows: the formats that Cotswold has written into the directories of runs, and what changed from each to the
next. Does not know: files, what the words mean.

What a run keeps (its recipe, its events, the state in its checkpoints) is written in the words of one format,
and says which. Recipes of an older one are read through here and nowhere else, so that a name changes in one
place; the names of events and states have not changed yet. Events and states that say no format are of the
first; a recipe that says none, as users write them, is of today's, or, if it uses older words, of the first.
To change a name: raise ``FORMAT`` and add a step.

| format | since |
|---|---|
| 1 | the words up to version 0.1; a run is known by a hash of its recipe |
| 2 | a run has an id of its own, and its recipe says the format |
| 3 | the words of PyTorch (`recipe.renamed_fields`); `[training]` by its strategy, `[data]` by its type |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cotswold.errors import FormatError, RecipeError
from cotswold.recipe.bounds import shown
from cotswold.recipe.renamed_fields import Word, new_words, old_words, renew

FORMAT = 3
"""The format that is written."""

Values = dict[str, Any]
"""A recipe as TOML has it."""
Step = Callable[[Values], None]
"""Turns the words of one format into those of the next, in place."""

Tell = Callable[[str], None]
"""Hears a sentence for whoever wrote the recipe."""

RECIPE_STEPS: dict[int, Step] = {2: renew}
"""What changed in recipes from a format to the next; nothing did where there is none."""


def silent(sentence: str) -> None:
    """Hears nothing."""


def migrated(values: Values, origin: str, tell: Tell = silent) -> Values:
    """A recipe in today's words and without its format; ``origin`` names it in errors.

    ``tell`` hears which words are older ones. Raises FormatError for a format that this version does not
    know, RecipeError for a recipe that mixes old words with today's.
    """
    old, today = old_words(values), new_words(values)
    first = FORMAT if "format" not in values and not old else format_of(values, origin)
    values = {name: value for name, value in values.items() if name != "format"}
    if first == FORMAT:
        return values
    if old and today:
        raise RecipeError(
            f"{origin} mixes words of an older version with today's, such as {today[0]}: {_said(old, values)}"
        )
    said = _said(old, values)
    values = _copied(values)
    for number in range(first, FORMAT):
        if number in RECIPE_STEPS:
            RECIPE_STEPS[number](values)
    if old:
        tell(f"{origin} uses words of an older version: {said} (cotswold recipe show writes today's)")
    return values


def _said(old: Sequence[Word], values: Values) -> str:
    return ", ".join(word.said(values) for word in old)


def _copied(values: Any) -> Any:
    """The values once more, without those that are null: TOML has none, states in JSON do."""
    if isinstance(values, dict):
        return {name: _copied(value) for name, value in values.items() if value is not None}
    return [_copied(value) for value in values] if isinstance(values, list) else values


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
