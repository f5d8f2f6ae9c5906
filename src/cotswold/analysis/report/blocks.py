"""What a page is made of: sections of paragraphs, tables, figures.

Knows: which blocks there are and what each holds, all of it text that is not escaped yet. Does not know: the
HTML, which is in ``templates/``; what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

_FITS_A_PHONE = 3  # columns


@dataclass(frozen=True)
class Paragraph:
    """Sentences; ``kind`` is a class of the page's style."""

    macro: ClassVar[str] = "paragraph"
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Missing:
    """What is not there, and the command that makes it."""

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
    """Names and values, side by side."""

    macro: ClassVar[str] = "facts"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Image:
    """A picture that the page holds as a data URI; ``text`` says what it shows to who cannot see it."""

    macro: ClassVar[str] = "image"
    uri: str
    text: str


@dataclass(frozen=True)
class Drawing:
    """A plot: an ``<svg>`` element as `plots.plot` gives it, the only text that is not escaped."""

    macro: ClassVar[str] = "drawing"
    svg: str


@dataclass(frozen=True)
class Figure:
    """A plot or picture with its caption."""

    macro: ClassVar[str] = "figure"
    content: Image | Drawing
    caption: str
    kind: str = ""


@dataclass(frozen=True)
class TableCell:
    """A cell of a table: a smaller line below, whether it stands out, how much of it is shaded (0 to 1)."""

    text: str
    below: str = ""
    best: bool = False
    part: float | None = None


@dataclass(frozen=True)
class Table:
    """A table in a box of its own; the first cell of a row is its heading, a heading may have several lines.

    On a phone a wide one shows each row as a list of its columns' names and values; a ``kind`` of table that
    has a shape of its own, such as `confusion`, scrolls under its first column instead.
    """

    macro: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    kind: str = ""

    @property
    def scrolls(self) -> str:
        """The class of its box for phones; empty for a table that fits."""
        if len(self.head) <= _FITS_A_PHONE:
            return ""
        return "wide" if self.kind else "listed"


@dataclass(frozen=True)
class FigureGrid:
    """Blocks beside each other as far as there is room."""

    macro: ClassVar[str] = "grid"
    blocks: Sequence[Figure | Facts]
    kind: str = "plots"


@dataclass(frozen=True)
class Details:
    """What is shown when its summary is clicked; text stands as it is, line by line."""

    macro: ClassVar[str] = "details"
    summary: str
    content: Table | str


@dataclass(frozen=True)
class Beside:
    """A figure, and blocks to the right of it."""

    macro: ClassVar[str] = "beside"
    figure: Figure
    blocks: Sequence[Block]


Block = Paragraph | Missing | Heading | Items | Facts | Figure | Table | FigureGrid | Details | Beside


@dataclass(frozen=True)
class PageSection:
    """A part of the page under its heading; ``anchor`` is its address on the page."""

    title: str
    anchor: str
    blocks: Sequence[Block]
    kind: str = ""


@dataclass(frozen=True)
class Page:
    """Everything that the page shows; ``numbers`` are values with their labels."""

    title: str
    lead: str
    numbers: Sequence[tuple[str, str]]
    problems: Sequence[str]
    sections: Sequence[PageSection]
    footer: str


def row(*texts: str) -> list[TableCell]:
    """Cells of nothing but text."""
    return [TableCell(text) for text in texts]
