"""A sentence of docs/explanation with figures, and the function that gives these figures.

Knows: the form of a quote. Does not know: sentences, files of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.support.explanation.reading import result

NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
CODE = ""
"""In place of a file: the figures are those of the code."""


class Quote(NamedTuple):
    """A text of a page, with {} in place of its figures."""

    page: str
    text: str
    file: str
    values: Callable[[Any], Iterable[object]]

    def rendered(self) -> str:
        """Return the text with the figures."""
        return self.text.format(*self.values(result(self.file) if self.file else None))
