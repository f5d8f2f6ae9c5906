"""Every field of a recipe, or of another file of the same kind, explained.

Knows: the schema's own documentation. Does not know: recipes.
"""

from __future__ import annotations

import textwrap

from pydantic.fields import FieldInfo

from cotswold.recipe.kinds import bare, kind, sections_in
from cotswold.recipe.schema import Recipe, Section


def explain(root: type[Section] = Recipe) -> str:
    """All tables and fields: what each takes, its default, what it means and in which unit."""
    return "\n".join(_section(root, "")).strip() + "\n"


def _section(section: type[Section], path: str) -> list[str]:
    lines, below = [], []
    for name, field in section.model_fields.items():
        tables = sections_in(field.annotation)
        here = f"{path}.{name}" if path else name
        for table in tables:
            heading = f"[[{here}]]" if str(bare(field.annotation)).startswith("list") else f"[{here}]"
            below += ["", f"{heading}  # {table.__doc__}", *_section(table, here)]
        if not tables:
            lines += _field(name, field)
    return lines + below


def _field(name: str, field: FieldInfo) -> list[str]:
    if field.is_required():
        default = "required"
    elif field.default is None:
        default = "optional"
    else:
        default = f"default {_written(field.default)}"
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
