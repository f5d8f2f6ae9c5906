"""Error messages for invalid recipes: one sentence.

Knows: pydantic's errors and the schema's fields. Does not know: files. Unknown keys are reported first,
because a misspelt key often is also a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cotswold.recipe.bounds import OUT_OF_BOUNDS, shorten_value, shortened
from cotswold.recipe.field_types import (
    bare,
    is_section,
    join_words,
    kind,
    places_of,
    quote_choices,
    sections_in,
    selector_of,
)
from cotswold.recipe.schema.fields import Section

_UNKNOWN = "extra_forbidden"
_NO_TAG, _WRONG_TAG = "union_tag_not_found", "union_tag_invalid"
_RANKS = {_UNKNOWN: 0, OUT_OF_BOUNDS: 1}
"""Kinds of errors that are reported before others."""

FIELD_SYNONYMS = {
    **dict.fromkeys(("replicas", "n_replicas", "num_replicas", "n_workers", "num_workers"), "workers"),
    **dict.fromkeys(("lr", "eta", "step_size"), "learning_rate"),
    "n_fetch": "pull_every",
    "n_push": "push_every",
    "parameter_servers": "servers",
}
"""Names that papers and other libraries use for fields. A word that resembles another field of the same
table still means this field.
"""
_HINTS = {"network": ", such as [network] with layers = [], a network without hidden layers"}
"""Hints for missing keys."""


def describe_error(
    error: ValidationError,
    text: str,
    overridden: Collection[str],
    root: type[Section],
    also: Collection[str] = (),
) -> str:
    """Return the text after the file's name.

    For example `, line 7: network.stacks.0.strid is not a key; did you mean stride?`.

    ``overridden``: keys that do not come from the text; ``root``: the schema of the whole file; ``also``:
    fields of other tables that the caller accepts together with those of `[training]`.
    """
    details = sorted(error.errors(include_url=False), key=lambda each: _RANKS.get(each["type"], len(_RANKS)))
    first = details[0]
    place = _field_place(first, root)
    path = place.path
    others = {_field_place(each, root).path for each in details} - {path}
    line = "" if ".".join(path) in overridden else _line(path, text)
    sentence = _sentence(first, place, root, also if path[:1] == ("training",) else ())
    more = f" (and {len(others)} more)" if others else ""
    return f"{line}: {sentence}{more}"


class FieldPlace(NamedTuple):
    """Position of a field in a recipe."""

    path: tuple[str, ...]
    """Keys from the root."""
    owner: type[Section]
    """Table that contains the field."""
    alternatives: list[type[Section]]
    """Alternative tables for that position."""
    choices: Sequence[str]
    """Strategies or types of these tables, for the field that chooses among them."""


def _sentence(error: ErrorDetails, place: FieldPlace, root: type[Section], also: Collection[str]) -> str:
    path, owner, alternatives, choices = place
    key, here = path[-1] if path else "", shortened(".".join(part or '""' for part in path), 120)
    if error["type"] == _UNKNOWN:
        return f"{here} {_unknown(key, path, owner, alternatives, root, also)}"
    if error["type"] == OUT_OF_BOUNDS:
        return f"{here} cannot be {shorten_value(error['input'])}; it takes {error['ctx']['most']}"
    if error["type"] == "missing":
        return f"{here} is missing; it takes {kind(owner.model_fields[key])}{_HINTS.get(here, '')}"
    if error["type"] == _NO_TAG:
        return f"{here} is missing; it takes {quote_choices(choices)}"
    if error["type"] == _WRONG_TAG:
        tag = error["ctx"]["tag"]
        close = get_close_matches(str(tag), choices, n=1)
        other = ", or the strategy of a package that is not installed" if path[-1] == "strategy" else ""
        which = f"did you mean {close[0]}?" if close else f"it takes {quote_choices(choices)}{other}"
        return f"{here} is {shorten_value(tag)}; {which}"
    if error["type"] == "model_attributes_type":
        return f"{here} must be a table, not {shorten_value(error['input'])}"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    given = error["input"]
    if key in owner.model_fields:
        meant = _meant(error) if isinstance(given, str) else ""
        return f"{here} must be {kind(owner.model_fields[key])}, not {shorten_value(given)}{meant}"
    return f"{here} cannot be {shorten_value(given)}"


def _meant(error: ErrorDetails) -> str:
    """Return a suggestion for a text that resembles one of a field's choices."""
    choices = re.findall(r"'([^']*)'", error.get("ctx", {}).get("expected", ""))
    close = get_close_matches(error["input"][:100].lower(), choices, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown(
    key: str,
    path: tuple[str, ...],
    owner: type[Section],
    alternatives: Sequence[type[Section]],
    root: type[Section],
    also: Collection[str],
) -> str:
    """Explain a key that the table does not have: it belongs to another kind of table, or is misspelt."""
    if reason := getattr(owner, "refused", {}).get(key):
        return f"belongs to strategy supervised; {reason}"
    field, _ = selector_of(owner) or ("", ())
    known = [*(name for name in owner.model_fields if name != field), *also]
    close = _synonyms_of(path, known, root) or get_close_matches(key, known, n=1)
    belongs = _tables_with_field(key, alternatives)
    if belongs:
        similar = [name for name in known if {*name.split("_")} & {*key.split("_")}]
        close = close or (similar if len(similar) == 1 else [])  # several are no hint
        remedy = f"did you mean {close[0]}?" if close else f"remove it for {join_words(_choices(owner))}"
        return f"belongs to {_describe_choices(field, belongs)}; {remedy}"
    elsewhere = get_close_matches(key, [name for each in alternatives for name in each.model_fields], n=1)
    if elsewhere and elsewhere[0] == field:
        return f"is not a key; did you mean {field}?"
    if elsewhere and not close:
        tables = _tables_with_field(elsewhere[0], alternatives)
        return f"is not a key; {elsewhere[0]} belongs to {_describe_choices(field, tables)}"
    close = close or [name for name in known if get_close_matches(key, name.split("_"), n=1, cutoff=0.7)]
    close = close or places_of(key, root)
    if close:
        return f"is not a key; did you mean {close[0]}?"
    return f"is not a key; known keys: {', '.join(known)}"


def _synonyms_of(path: tuple[str, ...], known: Collection[str], root: type[Section]) -> list[str]:
    """Fields that a common alternative name means: in this table, or in another one."""
    meant = FIELD_SYNONYMS.get(path[-1])
    if meant is None:
        return []
    if meant in known:
        return [meant]
    return [place for place in places_of(meant, root) if not place.startswith(f"{path[0]}.")]


def _tables_with_field(key: str, tables: Sequence[type[Section]]) -> Sequence[str]:
    return [choice for each in tables if key in each.model_fields for choice in _choices(each)]


def _describe_choices(field: str, choices: Sequence[str]) -> str:
    """Text such as `strategy supervised` or `strategies greedy and joint`."""
    many = {"strategy": "strategies", "type": "types", "name": "names"}[field]
    return f"{field if len(choices) == 1 else many} {join_words(choices, 'and')}"


def _choices(table: type[Section]) -> Sequence[str]:
    """Strategies or types that select a table; empty if it has no alternatives."""
    return (selector_of(table) or ("", ()))[1]


def _field_place(error: ErrorDetails, root: type[Section]) -> FieldPlace:
    place = _locate(error["loc"], root)
    if error["type"] in (_NO_TAG, _WRONG_TAG):  # pydantic names the table; the message needs the field
        return place._replace(path=(*place.path, error["ctx"]["discriminator"].strip("'")))
    return place


def _locate(loc: Sequence[int | str], root: type[Section]) -> FieldPlace:
    """Return the position of an error, with the keys that the user wrote.

    pydantic inserts names between the keys: the kind of a table, the alternatives of a value.
    """
    path: tuple[str, ...] = ()
    owner: type[Section] = root
    alternatives: list[type[Section]] = []
    node: Any = root
    tables: list[type[Section]] = []
    for item in loc:
        if is_section(node):
            path, owner, alternatives = (
                (*path, str(item)),
                node,
                [each for each in tables if each is not node],
            )
            field = owner.model_fields.get(str(item))
            if field is None:
                break
            node, tables = bare(field.annotation), []
        elif get_origin(node) is list:
            path = (*path, str(item))
            node = bare(get_args(node)[0])
        else:
            tables = sections_in(node)
            chosen = [each for each in tables if item in (each.__name__, *_choices(each))]
            if not chosen:
                break
            node = chosen[0]
    choices = [choice for each in sections_in(node) for choice in _choices(each)]
    return FieldPlace(path, owner, alternatives, choices)


def _line(path: tuple[str, ...], text: str) -> str:
    """Return `, line 7` if exactly one line of the text sets the last key; else nothing."""
    if not path:
        return ""
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(rf"\s*{re.escape(path[-1])}\s*=", line)
    ]
    return f", line {lines[0]}" if len(lines) == 1 else ""
