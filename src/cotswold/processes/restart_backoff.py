"""How soon a process that ended is started again: at once, and later and later if it ends at once again.

Knows: when it was started, how often in a row it ended soon. Does not know: processes, clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

_PATIENCE_SECONDS = 0.2
_MOST_SECONDS = 10.0
_WELL_SECONDS = 10.0
"""Whoever has lived so long is started again at once."""


@dataclass
class Life:
    """Of a process that is to be there, whatever its name is at a time.

    >>> life = Life(0.0)
    >>> for now in (1.0, 2.0, 3.0, 30.0):
    ...     life.ended(now)
    ...     print(life.due)
    ...     life.started(now)
    1.0
    2.2
    3.4
    30.0
    """

    began: float
    ends: int = 0
    """In a row, each soon after the start."""
    due: float | None = None
    """When the next is started; None while one runs."""

    def started(self, now: float) -> None:
        """One runs."""
        self.began, self.due = now, None

    def failed(self, now: float) -> None:
        """It could not be started."""
        self.began = now
        self.ended(now)

    def ended(self, now: float) -> None:
        """It runs no more."""
        self.ends = self.ends + 1 if now - self.began < _WELL_SECONDS else 0
        wait = 0.0 if self.ends < 2 else min(_MOST_SECONDS, _PATIENCE_SECONDS * 2 ** (self.ends - 2))
        self.due = now + wait

    def is_due(self, now: float) -> bool:
        """Whether the next is to be started."""
        return self.due is not None and self.due <= now
