"""Markdown of generated pages.

Knows: tables, escapes. Does not know: what is documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "cotswold"
"""The package whose definitions are documented."""
_DOCS = re.compile(r"`?\bdocs/([a-z-]+\.md)`?")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; pipes in cells are escaped.

    >>> print(table(["name", "meaning"], [["`a|b`", "either"]]), end="")
    | name | meaning |
    |---|---|
    | `a\\|b` | either |
    """
    lines = [_row(head), "|" + "---|" * len(head), *map(_row, rows)]
    return "".join(f"{line}\n" for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(_cell(each) for each in cells)} |"


def prose(text: str, up: str = "../") -> str:
    """Return plain text as Markdown: no tags, no links by accident, names of pages as links.

    Args:
        text: plain text, code in backticks.
        up: the way from the page to the folder of all pages.
    """
    safe = re.sub(r"<(?=[A-Za-z/])", "&lt;", text).replace("][", "]\\[")
    return _DOCS.sub(lambda found: f"[{found[1]}]({up}{found[1]})", safe)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
