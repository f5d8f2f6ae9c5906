"""Write a recipe as TOML text in which every field has its documentation as a comment.

Knows: values and the schema's documentation. Does not know: files. The text reads back as the same recipe;
unset fields are comments, ready to be filled in.
"""

from __future__ import annotations

import textwrap
from typing import Any, get_origin

from cotswold.recipe.field_types import bare, kind, sections_in
from cotswold.recipe.migration import FORMAT
from cotswold.recipe.schema import Recipe, Section
from cotswold.recipe.toml import value_text

_HEAD = """\
# Every field of the recipe with its meaning. Unset fields begin with # and state what they take: fill one in
# and remove the #. cotswold recipe explain documents the fields of all kinds of layers.

"""
_WIDTH = 108


def commented(recipe: Recipe) -> str:
    """Return the whole recipe as TOML; every field is explained at its first occurrence.

    Args:
        recipe: the recipe.
    """
    return f"{_HEAD}format = {FORMAT}\n\n" + "\n".join(_Writer().section(recipe, "")) + "\n"


class _Writer:
    """Remembers which tables are explained already."""

    def __init__(self) -> None:
        self._explained: set[type[Section]] = set()

    def section(self, table: Section, path: str) -> list[str]:
        """Return the lines of a table: its own fields, then the tables below."""
        explain = type(table) not in self._explained
        self._explained.add(type(table))
        lines: list[str] = []
        below: list[str] = []
        for name, field in type(table).model_fields.items():
            here, value = f"{path}.{name}" if path else name, getattr(table, name)
            if not sections_in(field.annotation):
                lines += _comment(field.description) if explain else []
                unset = f"# {name} =   # not set; {kind(field)}"
                lines.append(unset if value is None else f"{name} = {value_text(value)}")
            elif isinstance(value, Section):
                below += ["", *_comment(type(value).__doc__), f"[{here}]", *self.section(value, here)]
            elif value:
                below += ["", *_comment(field.description)]
                for item in value:
                    below += [f"[[{here}]]", *self.section(item, here), ""]
                below.pop()
            else:
                below += ["", *_comment(field.description), *_example(field.annotation, here)]
        return lines + below


def _example(annotation: Any, path: str) -> list[str]:
    """Return an optional table as comments."""
    assert get_origin(bare(annotation)) is list, "tables that may be missing are lists"
    tables = sections_in(annotation)
    if len(tables) > 1:
        return [f"# [[{path}]]"]
    fields = tables[0].model_fields.items()
    return [f"# [[{path}]]", *(f"# {name} =   # {kind(field)}" for name, field in fields)]


def _comment(words: str | None) -> list[str]:
    return textwrap.wrap(" ".join((words or "").split()), _WIDTH, initial_indent="# ", subsequent_indent="# ")
