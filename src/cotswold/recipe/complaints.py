"""One sentence about what is wrong with a recipe.

Knows: pydantic's errors and the schema's fields. Does not know: files. An unknown key is named before
anything else, for a misspelt key is often also a missing one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cotswold.recipe.bounds import BEYOND, shortened, shown
from cotswold.recipe.kinds import bare, is_section, kind, places_of, sections_in
from cotswold.recipe.schema import Recipe, Section

_UNKNOWN = "extra_forbidden"
_RANKS = {_UNKNOWN: 0, BEYOND: 1}
"""Kinds of errors that are told before others."""


def complaint(
    error: ValidationError, text: str, overridden: Collection[str], root: type[Section] = Recipe
) -> str:
    """What follows the file's name: `, line 7: network.stacks.0.feild is not a key; did you mean field?`.

    ``overridden`` are the keys that did not come from the text, ``root`` the schema of the whole file.
    """
    details = sorted(error.errors(include_url=False), key=lambda each: _RANKS.get(each["type"], len(_RANKS)))
    first = details[0]
    path, owner = _locate(first["loc"], root)
    others = {_locate(each["loc"], root)[0] for each in details} - {path}
    more = f" (and {len(others)} more)" if others else ""
    line = "" if ".".join(path) in overridden else _line(path, text)
    return f"{line}: {_sentence(first, path, owner)}{more}"


def _sentence(error: ErrorDetails, path: tuple[str, ...], owner: type[Section]) -> str:
    key, here = path[-1] if path else "", shortened(".".join(part or '""' for part in path), 120)
    if error["type"] == _UNKNOWN:
        close = get_close_matches(key, owner.model_fields, n=1) or places_of(key)
        hint = f"did you mean {close[0]}?" if close else f"known here are {', '.join(owner.model_fields)}"
        return f"{here} is not a key; {hint}"
    if error["type"] == BEYOND:
        return f"{here} cannot be {shown(error['input'])}; it takes {error['ctx']['most']}"
    if error["type"] == "missing":
        return f"{here} is missing; it takes {kind(owner.model_fields[key])}"
    if error["type"] == "union_tag_not_found":
        return f"{here}.type is missing; it names the kind of layer"
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        choices = [choice.strip(" '") for choice in context["expected_tags"].split(",")]
        close = get_close_matches(str(context["tag"]), choices, n=1)
        return f"{here}.type is {shown(context['tag'])}" + (
            f"; did you mean {close[0]}?" if close else f", which is none of {', '.join(choices)}"
        )
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    given = error["input"]
    if key in owner.model_fields:
        return f"{here} must be {kind(owner.model_fields[key])}, not {shown(given)}"
    return f"{here} cannot be {shown(given)}"


def _locate(loc: Sequence[int | str], root: type[Section]) -> tuple[tuple[str, ...], type[Section]]:
    """The keys as the user wrote them, and the table that the last of them belongs to.

    pydantic puts names of its own between the keys: the `type` of a layer, the alternatives of a value.
    """
    path: tuple[str, ...] = ()
    owner: type[Section] = root
    node: Any = root
    for item in loc:
        if is_section(node):
            path, owner = (*path, str(item)), node
            field = owner.model_fields.get(str(item))
            if field is None:
                break
            node = bare(field.annotation)
        elif get_origin(node) is list:
            path = (*path, str(item))
            node = bare(get_args(node)[0])
        else:
            tagged = [each for each in sections_in(node) if item in _tags(each)]
            if not tagged:
                break
            node = tagged[0]
    return path, owner


def _tags(section: type[Section]) -> tuple[object, ...]:
    field = section.model_fields.get("type")
    annotation = field.annotation if field else None
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _line(path: tuple[str, ...], text: str) -> str:
    """`, line 7` where the last key stands on one line of the text only."""
    if not path:
        return ""
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(rf"\s*{re.escape(path[-1])}\s*=", line)
    ]
    return f", line {lines[0]}" if len(lines) == 1 else ""
