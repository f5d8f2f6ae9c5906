"""Numbers as people read them, and the few shapes of HTML that the page is made of.

Knows: units, escaping, tables. Does not know: runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from math import floor, log10

_FITS_A_PHONE = 3  # columns
_TAGS = re.compile("<[^>]*>")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(value: float) -> str:
    """A whole number with thin spaces between thousands.

    >>> count(1234567)
    '1\\u202f234\\u202f567'
    """
    return f"{round(value):,}".replace(",", "\u202f")


def scaled(value: float, unit: str) -> str:
    """Three significant figures with a decimal prefix: 2.5 GFLOP."""
    power = min(max(0, floor(log10(abs(value)) / 3)) if value else 0, len(_PREFIXES) - 1)
    return f"{plain(value / 1000**power)} {_PREFIXES[power]}{unit}"


def plain(value: float) -> str:
    """Three significant figures, no exponent where that is readable."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return count(value)
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def duration(seconds: float) -> str:
    """Seconds, minutes and seconds, or hours and minutes."""
    if seconds < 60:
        return f"{plain(seconds)}\u202fs"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {left}\u202fs"
    return f"{minutes // 60}\u202fh {minutes % 60}\u202fmin"


def percent(value: float, digits: int = 1) -> str:
    """A fraction as per cent."""
    return f"{100 * value:.{digits}f}\u202f%"


def section(title: str, body: str, anchor: str) -> str:
    """A part of the page under its heading."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of text that is escaped."""
    return f"<p{_kind(kind)}>{escape(text)}</p>"


def missing(text: str, command: str) -> str:
    """What is not there, and the command that makes it."""
    return f'<p class="missing">{escape(text)} <code>{escape(command)}</code></p>'


def damage(problems: Sequence[str]) -> str:
    """What could not be shown, and why."""
    if not problems:
        return ""
    items = "".join(f"<li>{escape(each[:1].upper() + each[1:])}</li>" for each in problems)
    return f'<section id="damage" class="damage"><h2>Not shown</h2><ul>{items}</ul></section>'


class Best(str):
    """A cell of a table that stands out."""


def table(head: Sequence[str], body: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table in a box of its own; cells are HTML, the first of a row is its heading.

    On a phone a wide one shows each row as a list of its columns' names and values (page.html); a ``kind`` of
    table that has a shape of its own, such as `confusion`, scrolls under its first column instead.
    """
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    names = [escape(_TAGS.sub(" ", cell), quote=True) for cell in head]
    rows = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(_cell(cell, name) for cell, name in zip(row[1:], names[1:], strict=True))
        + "</tr>"
        for row in body
    )
    top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    whole = f"<table{_kind(kind)}>{top}<tbody>{rows}</tbody></table>"
    wide = len(head) > _FITS_A_PHONE
    return f'<div class="scroll{(" wide" if kind else " listed") if wide else ""}">{whole}</div>'


def facts(items: Iterable[tuple[str, str]]) -> str:
    """Names and values, side by side."""
    return (
        "<dl>" + "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in items) + "</dl>"
    )


def figure(content: str, caption: str, kind: str = "") -> str:
    """A plot or picture (HTML) with its caption (text)."""
    return f"<figure{_kind(kind)}>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def image(uri: str, text: str) -> str:
    """A picture that the page holds; ``text`` says what it shows to who cannot see it."""
    return f'<img src="{escape(uri)}" alt="{escape(text)}">'


def grid(figures: Iterable[str], kind: str = "plots") -> str:
    """Figures beside each other as far as there is room."""
    return f'<div class="{kind}">{"".join(figures)}</div>'


def _cell(cell: str, name: str) -> str:
    best = ' class="best"' if isinstance(cell, Best) else ""
    return f'<td{best} data-name="{name}">{cell}</td>'


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
