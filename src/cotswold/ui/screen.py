"""Refreshing output of lines that fit on a screen.

Knows: the size of a terminal, the rows that a long line takes. Does not know: the contents.
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
    """Space for lines."""

    rows: int | None = None
    """Number of rows; None for no limit."""
    columns: int | None = None
    """Width after which a line wraps; None for no limit."""

    @classmethod
    def of_terminal(cls) -> Screen:
        """Return the size of standard output, without the row of the cursor; unlimited if it is not a
        terminal.
        """
        if not sys.stdout.isatty():
            return cls()
        size = os.get_terminal_size()
        return cls(max(0, size.lines - 1) or None, size.columns or None)

    def rows_of(self, lines: Sequence[str]) -> int:
        """Return the number of rows that ``lines`` take."""
        return sum(map(self._rows_of, lines))

    def fit(self, lines: Sequence[str], taken: int = 0) -> int:
        """Return how many of ``lines``, from the first on, fit if ``taken`` rows are in use.

        >>> lines = ["a" * 10, "", "a" * 11, ""]
        >>> Screen(4, 10).fit(lines), Screen(4, 10).fit(lines, 1), Screen().fit(lines)
        (3, 2, 4)
        """
        rows = self.rows
        if rows is None:
            return len(lines)
        return sum(taken + end <= rows for end in accumulate(map(self._rows_of, lines)))

    def _rows_of(self, line: str) -> int:
        return 1 if self.columns is None else max(1, -(-len(line) // self.columns))


def refresh(lines: Callable[[Screen], Sequence[str]]) -> None:
    """Refresh the output of ``lines`` every second until Ctrl-C; show the error if no controller answers.

    ``lines`` receives the screen, to select what fits.
    """
    clear = "\x1b[2J\x1b[H" if sys.stdout.isatty() else ""
    with suppress(KeyboardInterrupt):
        while True:
            screen = Screen.of_terminal()
            try:
                shown = list(lines(screen))
            except CotswoldError as error:
                shown = [str(error)]
            print(clear, "\n".join(shown[: screen.fit(shown)]), sep="", flush=True)
            time.sleep(_WATCH_SECONDS)
