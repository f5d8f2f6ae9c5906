"""Documentation of every field of a recipe, or of another file with a schema.

Knows: the schema's docstrings. Does not know: recipes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic.fields import FieldInfo

from cotswold.errors import RecipeError
from cotswold.recipe.bounds import shorten_value
from cotswold.recipe.field_types import is_list, kind, quote_choices, sections_in, selector_of
from cotswold.recipe.plugins import join_strategies
from cotswold.recipe.schema import Recipe, Section


def explain(word: str | None = None, root: type[Section] = Recipe) -> str:
    """Return the documentation of fields: type, default, meaning and unit.

    Args:
        word: selects a table (`training`, `network.stacks`), a strategy or type (`supervised`), or a field
            (`stride`, `training.epochs`), strategies of installed packages included; None for all tables.
        root: the schema (default: that of recipes).

    Returns:
        Text of several lines.

    Raises:
        RecipeError: if `word` selects nothing.
    """
    refused = join_strategies() if root is Recipe else {}
    if word in refused:
        raise RecipeError(refused[word])
    tables = list(_tables(root, ""))
    lines = (
        [line for table in tables for line in table.lines()] if word is None else _explain_word(word, tables)
    )
    return "\n".join(lines).strip() + "\n"


@dataclass(frozen=True)
class _Table:
    """A table of the schema, or one of several alternatives for a position."""

    path: str
    heading: str
    chooser: str
    """Field that chooses among alternatives, such as `strategy`."""
    choices: tuple[str, ...]
    """Values of that field that select this table."""
    description: str
    fields: dict[str, FieldInfo]
    documented_elsewhere: dict[str, str]
    """Fields that another alternative documents already, and that alternative's choice."""

    def lines(self) -> list[str]:
        """Heading and every field; fields documented elsewhere take one line per place."""
        lines = self.head()
        for name in self.fields:
            lines += [] if name in self.documented_elsewhere else self.field(name)
        for where in dict.fromkeys(self.documented_elsewhere.values()):
            names = ", ".join(name for name, place in self.documented_elsewhere.items() if place == where)
            lines += textwrap.wrap(f"{names}: as for {where}", 96, subsequent_indent=" " * 4)
        return lines

    def all_lines(self) -> list[str]:
        """Heading and every field with its meaning."""
        return self.head() + [line for name in self.fields for line in self.field(name)]

    def field_text(self, name: str) -> list[str]:
        """Heading and one field; a field documented elsewhere names that place."""
        if name in self.documented_elsewhere:
            return [*self.head(), f"{name}: as for {self.documented_elsewhere[name]}"]
        return self.head() + self.field(name)

    def field(self, name: str) -> list[str]:
        """Type, default and meaning of a field; the choosing field shows no default."""
        return _field(name, self.fields[name], shows_default=name != self.chooser)

    def head(self) -> list[str]:
        """An empty line and the heading; nothing for the recipe itself."""
        choice = f"{self.chooser} = {quote_choices(self.choices)}: " if self.chooser else ""
        return ["", f"{self.heading}  # {choice}{self.description}"] if self.path else []


def _tables(section: type[Section], path: str) -> Iterator[_Table]:
    """Yield the tables of a schema, each before the tables inside it."""
    if not path:
        yield _table(section, path, "", [section])
    for name, field in section.model_fields.items():
        here = f"{path}.{name}" if path else name
        heading = f"[[{here}]]" if is_list(field.annotation) else f"[{here}]"
        alternatives = sections_in(field.annotation)
        for table in alternatives:
            yield _table(table, here, heading, alternatives)
            yield from _tables(table, here)


def _table(section: type[Section], path: str, heading: str, alternatives: list[type[Section]]) -> _Table:
    """Describe a table of the schema; the list of alternatives includes the table itself."""
    fields = {
        name: field for name, field in section.model_fields.items() if not sections_in(field.annotation)
    }
    like = {}
    for name, field in fields.items():
        for other in alternatives[: alternatives.index(section)]:
            theirs = other.model_fields.get(name)
            if theirs is not None and _field(name, theirs) == _field(name, field):
                like[name] = quote_choices(_choices(other))
                break
    chooser, choices = (selector_of(section) if len(alternatives) > 1 else None) or ("", ())
    return _Table(path, heading, chooser, choices, section.__doc__ or "", fields, like)


def _choices(section: type[Section]) -> tuple[str, ...]:
    chosen = selector_of(section)
    return () if chosen is None else chosen[1]


def _explain_word(word: str, tables: list[_Table]) -> list[str]:
    """Return the lines that a word selects: tables, or a field wherever one has that name."""
    word = word.strip("[]")
    if named := [table for table in tables if word in (table.path, table.path.rpartition(".")[2])]:
        inside = [table for table in tables if table.path.startswith(f"{named[0].path}.")]
        return [line for table in [*named, *inside] if table.path for line in table.lines()]
    if chosen := [table for table in tables if word in table.choices]:
        return [line for table in chosen for line in table.all_lines()]
    found: list[str] = []
    for table in tables:
        for name in table.fields:
            if word in (name, f"{table.path}.{name}"):
                found += table.field_text(name)
    if found:
        return found
    known = {part for table in tables for part in (table.path, *table.choices, *table.fields) if part}
    close = get_close_matches(word, sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else "cotswold recipe explain lists all"
    raise RecipeError(f"{shorten_value(word)} is not a table, strategy, type or field of a recipe; {hint}")


def _field(name: str, field: FieldInfo, *, shows_default: bool = True) -> list[str]:
    if not shows_default:
        default = ""
    elif field.is_required():
        default = "; required"
    elif (value := field.get_default(call_default_factory=True)) is None:
        default = "; optional"
    else:
        default = f"; default {_format_value(value)}"
    words = " ".join((field.description or "").split())
    indent = " " * 4
    meaning = textwrap.wrap(words, 92, initial_indent=indent, subsequent_indent=indent)
    return [f"{name} = {kind(field)}{default}", *meaning]


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)
