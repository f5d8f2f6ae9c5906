"""Building blocks of a page: sections of paragraphs, tables, figures.

Knows: the blocks and their contents, as text that is not escaped yet. Does not know: HTML, which is in
``templates/``; the content of a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

_MAX_PHONE_COLUMNS = 3  # columns


@dataclass(frozen=True)
class Paragraph:
    """Sentences; ``kind`` is a class of the page's style."""

    macro: ClassVar[str] = "paragraph"
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Missing:
    """A result that does not exist yet, and the command that computes it."""

    macro: ClassVar[str] = "missing"
    text: str
    command: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section, of level 3 or 4."""

    macro: ClassVar[str] = "heading"
    text: str
    level: int = 3


@dataclass(frozen=True)
class Items:
    """A list."""

    macro: ClassVar[str] = "items"
    texts: Sequence[str]


@dataclass(frozen=True)
class Facts:
    """Names and values in columns."""

    macro: ClassVar[str] = "facts"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Image:
    """An image, stored in the page as a data URI; ``text`` is its alternative text."""

    macro: ClassVar[str] = "image"
    uri: str
    text: str


@dataclass(frozen=True)
class Drawing:
    """A plot: an ``<svg>`` element of `plots.plot`, the only text that is not escaped."""

    macro: ClassVar[str] = "drawing"
    svg: str


@dataclass(frozen=True)
class Figure:
    """A plot or image with its caption."""

    macro: ClassVar[str] = "figure"
    content: Image | Drawing
    caption: str
    kind: str = ""


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: text, a smaller line below, a highlight, the fraction that is shaded (0 to 1)."""

    text: str
    note: str = ""
    best: bool = False
    part: float | None = None


@dataclass(frozen=True)
class Table:
    """A table in a scrollable box; the first cell of a row is its heading, a heading may have several lines.

    On a phone, a wide table shows each row as a list of column names and values. A table with its own
    ``kind``, such as `confusion`, scrolls next to its fixed first column instead.
    """

    macro: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    kind: str = ""

    @property
    def scrolls(self) -> str:
        """CSS class of the table's box for phones; empty for a table that fits."""
        if len(self.head) <= _MAX_PHONE_COLUMNS:
            return ""
        return "wide" if self.kind else "listed"


@dataclass(frozen=True)
class FigureGrid:
    """Blocks in a grid with as many columns as fit."""

    macro: ClassVar[str] = "grid"
    blocks: Sequence[Figure | Facts]
    kind: str = "plots"


@dataclass(frozen=True)
class Details:
    """Content that a click on its summary shows; text is shown line by line."""

    macro: ClassVar[str] = "details"
    summary: str
    content: Table | str


@dataclass(frozen=True)
class FigureWithText:
    """A figure, with blocks to its right."""

    macro: ClassVar[str] = "figure_with_text"
    figure: Figure
    blocks: Sequence[Block]


Block = Paragraph | Missing | Heading | Items | Facts | Figure | Table | FigureGrid | Details | FigureWithText


@dataclass(frozen=True)
class PageSection:
    """A section of the page with its heading; ``anchor`` is its address within the page."""

    title: str
    anchor: str
    blocks: Sequence[Block]
    kind: str = ""


@dataclass(frozen=True)
class Page:
    """The whole page; ``numbers`` are values with labels."""

    title: str
    summary: str
    numbers: Sequence[tuple[str, str]]
    problems: Sequence[str]
    sections: Sequence[PageSection]
    footer: str


def row(*texts: str) -> list[TableCell]:
    """Return cells that contain only text."""
    return [TableCell(text) for text in texts]
