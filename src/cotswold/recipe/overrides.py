"""Overrides of single fields: `section.key=value`.

Knows: their form, TOML values, the fields of a stack that override a general one. Does not know: the schema's
types and limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tomllib import TOMLDecodeError

from cotswold.errors import RecipeError
from cotswold.recipe import bounds as limits
from cotswold.recipe.bounds import shorten_value

Values = dict[str, object]

STACK_FIELDS = {
    "training.epochs": "epochs",
    "training.relative_rate": "relative_rate",
    "objective.sparsity": "sparsity",
}
"""General fields, and the field of a stack that overrides each."""


def override_all(values: Values, overrides: Sequence[str]) -> list[str]:
    """Apply overrides to raw values, in place; return a message for each that also affects stacks.

    An override of a general field applies to all stacks: a stack's own value is removed, unless an override
    sets it.
    """
    for override in overrides:
        _override(values, override)
    given = {_path(override): override.partition("=")[2] for override in overrides}
    return [
        f"{general}={limits.shortened(given[general].strip())} applies to every stack; the recipe's "
        f"{_list_names(departing)} is ignored (network.stacks.N.{own}=... sets one stack)"
        for general, own in STACK_FIELDS.items()
        if given.get(general, "").strip() and (departing := list(_remove_unset_fields(values, own, given)))
    ]


def _remove_unset_fields(values: Values, own: str, given: dict[str, str]) -> Iterator[str]:
    """Remove a field from stacks that no override sets; yield the names of the removed fields."""
    network = values.get("network")
    stacks = network.get("stacks") if isinstance(network, dict) else None
    explicit = any(path in given for path in ("network", "network.stacks"))
    for number, stack in enumerate(stacks if isinstance(stacks, list) and not explicit else ()):
        named = f"network.stacks.{number}"
        if isinstance(stack, dict) and own in stack and not {named, f"{named}.{own}"} & given.keys():
            del stack[own]
            yield f"{named}.{own}"


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _path(override: str) -> str:
    return override.partition("=")[0].strip()


def _override(values: Values, override: str) -> None:
    """Apply `a.b.0.c=value` to the raw values, in place."""
    path, equals, written = override.partition("=")
    keys = path.strip().split(".")
    quoted = shorten_value(override, 120)
    if not equals or not all(keys):
        raise RecipeError(f"override {quoted} must have the form section.key=value")
    if len(keys) > limits.DEPTH_MAX:
        raise RecipeError(f"override {quoted} nests too deeply")
    holder: object = values
    for key in keys[:-1]:
        holder = _step(holder, key, quoted)
    last = keys[-1]
    if isinstance(holder, list):
        _step(holder, last, quoted)
        if not written.strip():
            del holder[int(last)]
        else:
            holder[int(last)] = _toml_value(written, quoted)
    elif isinstance(holder, dict):
        if not written.strip():
            holder.pop(last, None)
        else:
            holder[last] = _toml_value(written, quoted)
    else:
        raise RecipeError(f"override {quoted} names a key inside a value that is not a table")


def _step(holder: object, key: str, quoted: str) -> object:
    if isinstance(holder, dict):
        return holder.setdefault(key, {})
    if isinstance(holder, list):
        if key.isascii() and key.isdigit() and len(key) < 6 and int(key) < len(holder):
            return holder[int(key)]
        raise RecipeError(
            f"override {quoted}: {shorten_value(key)} must be one of 0 to {len(holder) - 1} here"
        )
    raise RecipeError(f"override {quoted} names a key inside a value that is not a table")


def _toml_value(written: str, quoted: str) -> object:
    word = written.strip()
    if any("\ud800" <= each <= "\udfff" for each in word):
        raise RecipeError(
            f"override {quoted} is not valid UTF-8, as a recipe must be; rename the file or folder that it "
            "names"
        )
    try:
        parsed = limits.toml(f"value = {word}")
    except ValueError as error:
        if not isinstance(error, TOMLDecodeError) or word[0] in "[{\"'" or "\n" in word:
            raise RecipeError(f"override {quoted} has an invalid TOML value: {error}") from error
        return word  # a bare word: training.strategy=joint
    if parsed.keys() != {"value"}:
        raise RecipeError(f"override {quoted} has more than one value; give one override per value")
    return parsed["value"]
