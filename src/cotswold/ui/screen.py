"""Lines that are shown anew again and again, on a screen that has room for so many.

Knows: how large a terminal is, that a long line takes several of its rows. Does not know: what is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from cotswold.errors import CotswoldError

_WATCH_SECONDS = 1.0


@dataclass(frozen=True)
class Screen:
    """Room for lines."""

    rows: int | None = None
    """As many as there are, where nobody says how many there is room for."""
    columns: int | None = None
    """Beyond which a line goes on in the next row."""

    @classmethod
    def of_terminal(cls) -> Screen:
        """That of standard output: but for the row of the cursor, and without limits that it does not say."""
        if not sys.stdout.isatty():
            return cls()
        size = os.get_terminal_size()
        return cls(max(0, size.lines - 1) or None, size.columns or None)

    def taken(self, lines: Sequence[str]) -> int:
        """How many rows these are."""
        return sum(map(self._rows_of, lines))

    def fitting(self, lines: Sequence[str], taken: int = 0) -> int:
        """For how many of these, from the first on, there is room where so many rows are taken.

        >>> lines = ["a" * 10, "", "a" * 11, ""]
        >>> Screen(4, 10).fitting(lines), Screen(4, 10).fitting(lines, 1), Screen().fitting(lines)
        (3, 2, 4)
        """
        rows = self.rows
        if rows is None:
            return len(lines)
        return sum(taken + end <= rows for end in accumulate(map(self._rows_of, lines)))

    def _rows_of(self, line: str) -> int:
        return 1 if self.columns is None else max(1, -(-len(line) // self.columns))


def watching(lines: Callable[[Screen], Sequence[str]]) -> None:
    """Show lines anew every second, until Ctrl-C; where no controller answers, that. ``lines`` hears for how
    many there is room."""
    clear = "\x1b[2J\x1b[H" if sys.stdout.isatty() else ""
    with suppress(KeyboardInterrupt):
        while True:
            screen = Screen.of_terminal()
            try:
                shown = list(lines(screen))
            except CotswoldError as error:
                shown = [str(error)]
            print(clear, "\n".join(shown[: screen.fitting(shown)]), sep="", flush=True)
            time.sleep(_WATCH_SECONDS)
