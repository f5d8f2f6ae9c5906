"""Every field of a recipe, or of another file of the same kind, explained.

Knows: the schema's own documentation. Does not know: recipes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic.fields import FieldInfo

from cotswold.errors import RecipeError
from cotswold.recipe.bounds import shown
from cotswold.recipe.field_types import chosen_by, either, is_list, kind, sections_in
from cotswold.recipe.plugins import join_strategies
from cotswold.recipe.schema import Recipe, Section


def explain(word: str | None = None, root: type[Section] = Recipe) -> str:
    """All tables and fields: what each takes, its default, what it means and in which unit.

    ``word`` chooses some: a table (`training`, `network.stacks`), a strategy or type (`supervised`), a field
    (`stride`, `training.epochs`). Strategies of installed packages are among them. Raises RecipeError for one
    that is none of these.
    """
    refused = join_strategies() if root is Recipe else {}
    if word in refused:
        raise RecipeError(refused[word])
    tables = list(_tables(root, ""))
    lines = [line for table in tables for line in table.lines()] if word is None else _about(word, tables)
    return "\n".join(lines).strip() + "\n"


@dataclass(frozen=True)
class _Table:
    """A table of the schema, or one of those that may stand in one place."""

    path: str
    heading: str
    chooser: str
    """The field that chooses among several tables, such as `strategy`."""
    choices: tuple[str, ...]
    """The values of that field that choose this one."""
    about: str
    fields: dict[str, FieldInfo]
    like: dict[str, str]
    """Fields that another table in the same place has explained, and its choice."""

    def lines(self) -> list[str]:
        """The heading and every field; those that are explained elsewhere in one line for each place."""
        lines = self.head()
        for name in self.fields:
            lines += [] if name in self.like else self.field(name)
        for where in dict.fromkeys(self.like.values()):
            names = ", ".join(name for name, place in self.like.items() if place == where)
            lines += textwrap.wrap(f"{names}: as for {where}", 96, subsequent_indent=" " * 4)
        return lines

    def all_lines(self) -> list[str]:
        """The heading and every field with its meaning."""
        return self.head() + [line for name in self.fields for line in self.field(name)]

    def only(self, name: str) -> list[str]:
        """The heading and one field."""
        return self.head() + self.field(name)

    def field(self, name: str) -> list[str]:
        """What a field takes, its default and its meaning; that which chooses the table has no default."""
        lines = _field(name, self.fields[name])
        return [lines[0].partition(";")[0], *lines[1:]] if name == self.chooser else lines

    def head(self) -> list[str]:
        """An empty line and the heading; nothing for the recipe itself."""
        choice = f"{self.chooser} = {either(self.choices)}: " if self.chooser else ""
        return ["", f"{self.heading}  # {choice}{self.about}"] if self.path else []


def _tables(section: type[Section], path: str) -> Iterator[_Table]:
    """The tables of a schema, each before those that it holds."""
    if not path:
        yield _table(section, path, "", [section])
    for name, field in section.model_fields.items():
        here = f"{path}.{name}" if path else name
        heading = f"[[{here}]]" if is_list(field.annotation) else f"[{here}]"
        beside = sections_in(field.annotation)
        for table in beside:
            yield _table(table, here, heading, beside)
            yield from _tables(table, here)


def _table(section: type[Section], path: str, heading: str, beside: list[type[Section]]) -> _Table:
    """A table of the schema; ``beside`` are those that may stand in its place, itself among them."""
    fields = {
        name: field for name, field in section.model_fields.items() if not sections_in(field.annotation)
    }
    like = {}
    for name, field in fields.items():
        for other in beside[: beside.index(section)]:
            theirs = other.model_fields.get(name)
            if theirs is not None and _field(name, theirs) == _field(name, field):
                like[name] = either(_choices(other))
                break
    chooser, choices = (chosen_by(section) if len(beside) > 1 else None) or ("", ())
    return _Table(path, heading, chooser, choices, section.__doc__ or "", fields, like)


def _choices(section: type[Section]) -> tuple[str, ...]:
    chosen = chosen_by(section)
    return () if chosen is None else chosen[1]


def _about(word: str, tables: list[_Table]) -> list[str]:
    """What a word chooses: tables, or a field wherever there is one of that name."""
    word = word.strip("[]")
    if named := [table for table in tables if word in (table.path, table.path.rpartition(".")[2])]:
        inside = [table for table in tables if table.path.startswith(f"{named[0].path}.")]
        return [line for table in [*named, *inside] if table.path for line in table.lines()]
    if chosen := [table for table in tables if word in table.choices]:
        return [line for table in chosen for line in table.all_lines()]
    found: list[str] = []
    for table in tables:
        for name in table.fields.keys() - table.like.keys():
            if word in (name, f"{table.path}.{name}"):
                found += table.only(name)
    if found:
        return found
    known = {part for table in tables for part in (table.path, *table.choices, *table.fields) if part}
    close = get_close_matches(word, sorted(known), n=1)
    hint = f"did you mean {close[0]}?" if close else "cotswold recipe explain lists all"
    raise RecipeError(f"{shown(word)} is no table, strategy, type or field of a recipe; {hint}")


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
