"""Every field of a recipe, or of another file of the same kind, explained.

Knows: the schema's own documentation. Does not know: recipes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from pydantic.fields import FieldInfo

from cotswold.recipe.kinds import chosen_by, either, is_list, kind, sections_in
from cotswold.recipe.schema import Recipe, Section


def explain(root: type[Section] = Recipe) -> str:
    """All tables and fields: what each takes, its default, what it means and in which unit."""
    return "\n".join(_section(root, "")).strip() + "\n"


def _section(section: type[Section], path: str, without: Collection[str] = ()) -> list[str]:
    lines, below = [], []
    for name, field in section.model_fields.items():
        if name in without:
            continue
        tables = sections_in(field.annotation)
        here = f"{path}.{name}" if path else name
        heading = f"[[{here}]]" if is_list(field.annotation) else f"[{here}]"
        shared = _shared(tables)
        if shared:
            below += ["", f"{heading}  # {field.description}"]
            below += [line for name in shared for line in _field(name, tables[0].model_fields[name])]
        for table in tables:
            below += [
                "",
                f"{heading}  # {_choice(table, tables)}{table.__doc__}",
                *_section(table, here, shared),
            ]
        if not tables:
            lines += _field(name, field)
    return lines + below


def _shared(tables: Sequence[type[Section]]) -> list[str]:
    """The fields that mean the same in all tables of a union."""
    if len(tables) < 2:
        return []
    first, *others = [table.model_fields for table in tables]
    return [name for name, field in first.items() if all(_same(field, each.get(name)) for each in others)]


def _same(one: FieldInfo, other: FieldInfo | None) -> bool:
    return other is not None and _field("", one) == _field("", other)


def _choice(table: type[Section], tables: Sequence[type[Section]]) -> str:
    """`strategy = "greedy": ` before the words of a table that stands beside others."""
    chosen = chosen_by(table) if len(tables) > 1 else None
    return "" if chosen is None else f"{chosen[0]} = {either(chosen[1])}: "


def _field(name: str, field: FieldInfo) -> list[str]:
    if field.is_required():
        default = "required"
    elif (value := field.get_default(call_default_factory=True)) is None:
        default = "optional"
    else:
        default = f"default {_written(value)}"
    words = " ".join((field.description or "").split())
    indent = " " * 4
    meaning = textwrap.wrap(words, 92, initial_indent=indent, subsequent_indent=indent)
    return [f"{name} = {kind(field)}; {default}", *meaning]


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)
