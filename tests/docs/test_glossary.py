"""docs/glossary.md: unique, sorted terms whose modules and classes exist."""

from __future__ import annotations

import re
from inspect import isclass, isfunction, ismodule
from itertools import groupby, pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
HEAD = ["term", "meaning", "in the papers", "where"]
PLACE = re.compile(r"`([A-Za-z_][\w.]*)`")


class Row(NamedTuple):
    """A row of a table of the page."""

    field: str
    term: str
    meaning: str
    papers: str
    where: str


def rows(text: str) -> list[Row]:
    """Return the rows of all tables of the page, in order."""
    found, field = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            field = line[3:]
        elif line.startswith("|") and not line.startswith("|---"):
            cells = [each.strip() for each in line.strip("|").split("|")]
            assert len(cells) == len(HEAD), line
            if cells != HEAD:
                found.append(Row(field, *cells))
    return found


def missing(text: str) -> list[str]:
    """Return the names of the last column that are no module, class or function of the package."""
    wrong = []
    for row in rows(text):
        match = PLACE.fullmatch(row.where)
        try:
            place = resolve_name(f"cotswold.{match[1]}") if match else None
        except (ImportError, AttributeError):
            place = None
        if not (ismodule(place) or isclass(place) or isfunction(place)):
            wrong.append(f"{row.term}: {row.where}")
    return wrong


def repeated(text: str) -> list[str]:
    """Return the terms that have more than one row."""
    terms = [row.term for row in rows(text)]
    return sorted({each for each in terms if terms.count(each) > 1})


def unsorted(text: str) -> list[tuple[str, str]]:
    """Return the neighbours within a field that are not in alphabetical order."""
    return [
        (first.term, second.term)
        for _, table in groupby(rows(text), key=lambda row: row.field)
        for first, second in pairwise(table)
        if first.term.casefold() >= second.term.casefold()
    ]


def test_every_place_is_a_module_a_class_or_a_function() -> None:
    assert missing(PAGE.read_text(encoding="utf-8")) == []


def test_every_term_has_one_row_with_one_sentence() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert repeated(text) == []
    assert len(rows(text)) > 100
    assert [row.term for row in rows(text) if not re.fullmatch(r"[A-Z][^.]*\.", row.meaning)] == []


def test_terms_are_in_alphabetical_order() -> None:
    assert unsorted(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("row", "check", "found"),
    [
        ("| push | A push. | | `replicas.absent` |", missing, ["push: `replicas.absent`"]),
        ("| push | A push. | | `run.Absent` |", missing, ["push: `run.Absent`"]),
        ("| push | A push. | | |", missing, ["push: "]),
        ("| push | A push. | | `run` |\n| push | A pull. | | `run` |", repeated, ["push"]),
        ("| push | A push. | | `run` |\n| pull | A pull. | | `run` |", unsorted, [("push", "pull")]),
    ],
)
def test_a_wrong_row_is_found(row: str, check: object, found: object) -> None:
    assert callable(check)
    assert (
        check(f"## Field\n\n| term | meaning | in the papers | where |\n|---|---|---|---|\n{row}\n") == found
    )
