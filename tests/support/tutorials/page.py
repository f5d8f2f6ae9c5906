"""A tutorial page as steps: files to save, commands to type, outputs to see, keys to press.

    ```python ... ```   after "Save this as `name.py`" or "Append this to `name.py`"; other languages, too
    ```sh ... ```       commands; the paragraph before may name "the first terminal", "a second terminal", ...
                        commands for other machines follow a paragraph with "host1", "host2" or "each host"
    ```text ... ```     the output of the terminal, where any number stands for any number, "..." for any text
    Press Ctrl-C in the first terminal.

Knows: Markdown's fences and paragraphs. Does not know: processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SAVE = re.compile(r"\b(Save|Append) this (?:as|to) `([\w./-]+)`")
_TERMINAL = re.compile(r"\b(first|second|third|fourth) terminal\b")
_HOST = re.compile(r"\b(?:`?host[1-9]`?|each host|other hosts)\b")
_INTERRUPT = re.compile(r"\bPress Ctrl-C in the (first|second|third|fourth) terminal\b")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_ANY_NUMBER = r"(?:nan|\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)"


@dataclass(frozen=True)
class Save:
    """A file of the reader's folder."""

    line: int
    name: str
    text: str
    is_appended: bool


@dataclass(frozen=True)
class Type:
    """Commands for one terminal, or for other machines."""

    line: int
    terminal: str
    commands: tuple[str, ...]
    is_elsewhere: bool


@dataclass(frozen=True)
class See:
    """Lines that one terminal shows."""

    line: int
    terminal: str
    text: str


@dataclass(frozen=True)
class Press:
    """Ctrl-C in one terminal."""

    line: int
    terminal: str


Step = Save | Type | See | Press


class PageError(Exception):
    """A block of a page without a place to go."""


def steps(page: Path) -> Iterator[Step]:
    """Yield the steps of a page, in order.

    Raises PageError for a block of a language that this module does not know, or without its sentence.
    """
    terminal = "first"
    for line, said, language, text in _blocks(page.read_text(encoding="utf-8")):
        if pressed := _INTERRUPT.search(said):
            yield Press(line, pressed[1])
        named = _TERMINAL.findall(said)
        terminal = named[-1] if named else terminal
        if language == "sh":
            yield Type(line, terminal, commands(text), _HOST.search(said) is not None)
        elif language == "text":
            yield See(line, terminal, text)
        elif language:
            saved = _SAVE.findall(said)
            if len(saved) != 1:
                raise PageError(f"{page.name}:{line}: say one 'Save this as' or 'Append this to' before it")
            yield Save(line, saved[0][1], text, is_appended=saved[0][0] == "Append")


def commands(text: str) -> tuple[str, ...]:
    r"""Return the commands of a block: a line with the lines that a backslash continues.

    >>> commands("one\ntwo \\\n  three\n")
    ('one', 'two \\\n  three')
    """
    found = re.findall(r"(?:[^\n]*\\\n)*[^\n]+", text)
    return tuple(each for each in found if each.strip() and not each.startswith("#"))


def pattern(text: str) -> re.Pattern[str]:
    """Return the expression that finds lines in an output: in this order, perhaps with others in between.

    >>> bool(pattern("loss 0.25 after 10 steps").search("  loss 1.3e-05 after 1,200   steps"))
    True
    >>> bool(pattern("finished").search("failed"))
    False
    >>> bool(pattern("a ... c").search("a b c"))
    True
    """
    return re.compile(r"(?:.|\n)*?".join(_line(each) for each in text.splitlines() if each.strip()))


def _line(text: str) -> str:
    parts = []
    for part in text.split("..."):
        words = (_ANY_NUMBER.join(map(re.escape, _NUMBER.split(word))) for word in part.split())
        parts.append(r"\s+".join(words))
    return r"[^\n]*?".join(parts)


def _blocks(text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield each paragraph and each fenced block: its line, the paragraph before, its language, its text.

    A paragraph without a block after it has the language "".
    """
    paragraph: list[str] = []
    language, inside = "", list[str]()
    is_inside = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("```"):
            if is_inside:
                yield number, " ".join(paragraph), language, "".join(f"{each}\n" for each in inside)
                paragraph = []
            language, inside, is_inside = line[3:].strip() or "text", [], not is_inside
        elif is_inside:
            inside.append(line)
        elif line.strip():
            if paragraph and not paragraph[-1]:
                yield number, " ".join(paragraph), "", ""
                paragraph = []
            paragraph.append(line.strip())
        elif paragraph:
            paragraph.append("")
    if paragraph:
        yield number, " ".join(paragraph), "", ""
