"""Small HTML tables for notebooks.

Knows: escaping. Does not know: the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text below a caption and headings."""
    headings = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{headings}</tr></thead>"
        f"<tbody>{lines}</tbody></table>"
    )
