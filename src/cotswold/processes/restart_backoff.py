"""Restart backoff: an exited process restarts at once, and later and later if it keeps exiting soon.

Knows: the start time, the number of early exits in a row. Does not know: processes, clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

_PATIENCE_SECONDS = 0.2
_MOST_SECONDS = 10.0
_WELL_SECONDS = 10.0
"""Seconds of life after which a process restarts at once."""


@dataclass
class RestartBackoff:
    """Restart backoff of a process, independent of its changing name.

    >>> life = RestartBackoff(0.0)
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
    """Early exits in a row."""
    due: float | None = None
    """Time of the next start; None while the process runs."""

    def started(self, now: float) -> None:
        """Note that the process runs."""
        self.began, self.due = now, None

    def failed(self, now: float) -> None:
        """Note that the process could not be started."""
        self.began = now
        self.ended(now)

    def ended(self, now: float) -> None:
        """Note that the process exited."""
        self.ends = self.ends + 1 if now - self.began < _WELL_SECONDS else 0
        wait = 0.0 if self.ends < 2 else min(_MOST_SECONDS, _PATIENCE_SECONDS * 2 ** (self.ends - 2))
        self.due = now + wait

    def is_due(self, now: float) -> bool:
        """True if the next start is due."""
        return self.due is not None and self.due <= now
