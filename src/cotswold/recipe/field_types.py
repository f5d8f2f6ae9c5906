"""Types of the schema's fields, in words.

Knows: the annotations that the schema uses. Does not know: values, files.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from cotswold.recipe.schema.fields import Fraction, Section
from cotswold.recipe.schema.training import STRATEGIES, names_of

_TYPE_NAMES = {str: "a text", bool: "true or false", int: "an integer", float: "a number"}


def bare(annotation: Any) -> Any:
    """Return the annotation without Annotated and None."""
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    members = _members(annotation)
    return annotation if len(members) > 1 or members[0] is annotation else bare(members[0])


def sections_in(annotation: Any) -> list[type[Section]]:
    """Return the tables that an annotation allows: none, one, or one per `type`."""
    annotation = bare(annotation)
    if get_origin(annotation) is list:
        return sections_in(get_args(annotation)[0])
    return [member for member in map(bare, _members(annotation)) if is_section(member)]


def is_section(annotation: Any) -> bool:
    """True if the annotation is a table."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def places_of(name: str, root: type[Section]) -> list[str]:
    """Return the dotted names of all fields of this name, lists of tables excepted: training.epochs."""
    found: dict[str, None] = {}
    for key, field in root.model_fields.items():
        tables = sections_in(field.annotation)
        if is_list(field.annotation):
            continue
        for table in tables:
            found |= dict.fromkeys(f"{key}.{place}" for place in places_of(name, table))
        if key == name and not tables:
            found[key] = None
    return list(found)


def is_list(annotation: Any) -> bool:
    """True if the annotation is a list of tables."""
    return get_origin(bare(annotation)) is list and bool(sections_in(annotation))


def selector_of(section: type[Section]) -> tuple[str, tuple[str, ...]] | None:
    """Return the field and values that select this table, such as `strategy` and `greedy`, or None."""
    for name in ("strategy", "type", "name"):
        field = section.model_fields.get(name)
        if field is not None and get_origin(field.annotation) is Literal:
            return name, get_args(field.annotation)
    for each in STRATEGIES:
        if each.objective is section:
            return "strategy", tuple(
                str(name) for s in STRATEGIES if s.objective is section for name in names_of(s)
            )
    return None


def kind(field: FieldInfo) -> str:
    """Return the type of a field in words, such as `an integer > 0`."""
    return _kind(field.annotation, field.metadata)


def _kind(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _kind(inner, [*metadata, *more])
    origin, members = get_origin(annotation), _members(annotation)
    if origin is Literal:
        return quote_choices(get_args(annotation))
    if is_section(annotation):
        return "a table"
    if origin is list:
        inner = get_args(annotation)[0]
        numbers = bare(inner) is int
        return "a list of tables" if sections_in(inner) else f"a list of {'integers' if numbers else 'texts'}"
    if origin is tuple:
        if get_args(annotation)[0] == Fraction:
            return "[first, second], numbers >= 0 and < 1"
        return "[least, greatest]" if bare(get_args(annotation)[0]) is float else "[height, width]"
    if len(members) > 1:
        return "a table" if sections_in(annotation) else join_words([_kind(each, []) for each in members])
    if members[0] is not annotation:
        return _kind(members[0], metadata)
    return " ".join([_TYPE_NAMES[annotation], *_limits(metadata)])


def _members(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, UnionType):
        return [each for each in get_args(annotation) if each is not NoneType]
    return [annotation]


def _limits(metadata: list[Any]) -> list[str]:
    limits = []
    for item in metadata:
        for each in item.metadata if isinstance(item, FieldInfo) else [item]:
            match each:
                case Gt(gt=bound):
                    limits.append(f"> {bound}")
                case Ge(ge=bound):
                    limits.append(f">= {bound}")
                case Lt(lt=bound):
                    limits.append(f"< {bound}")
                case Le(le=bound):
                    limits.append(f"<= {bound}")
    return [" and ".join(limits)] if limits else []


def quote_choices(choices: Sequence[str]) -> str:
    """Join choices in quotation marks: `"greedy", "joint" or "supervised"`."""
    return join_words([f'"{choice}"' for choice in choices])


def join_words(words: Sequence[str], last: str = "or") -> str:
    """Join words in a sentence: `greedy, joint or supervised`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
