"""Restart backoff: an exited process restarts at once, and later and later if it keeps exiting soon.

Knows: the start time, the number of early exits in a row. Does not know: processes, clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_DELAY_SECONDS = 0.2
_MAX_DELAY_SECONDS = 10.0
_HEALTHY_SECONDS = 10.0
"""Seconds of life after which a process restarts at once."""


@dataclass
class RestartBackoff:
    """Restart backoff of a process, independent of its changing name.

    >>> backoff = RestartBackoff(0.0)
    >>> for now in (1.0, 2.0, 3.0, 30.0):
    ...     backoff.record_exit(now)
    ...     print(backoff.restart_at)
    ...     backoff.record_start(now)
    1.0
    2.2
    3.4
    30.0
    """

    started_at: float
    exits: int = 0
    """Early exits in a row."""
    restart_at: float | None = None
    """Time of the next start; None while the process runs."""

    def record_start(self, now: float) -> None:
        """Note that the process runs."""
        self.started_at, self.restart_at = now, None

    def failed(self, now: float) -> None:
        """Note that the process could not be started."""
        self.started_at = now
        self.record_exit(now)

    def record_exit(self, now: float) -> None:
        """Note that the process exited."""
        self.exits = self.exits + 1 if now - self.started_at < _HEALTHY_SECONDS else 0
        wait = (
            0.0 if self.exits < 2 else min(_MAX_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** (self.exits - 2))
        )
        self.restart_at = now + wait

    def is_restart_due(self, now: float) -> bool:
        """True if the next start is due."""
        return self.restart_at is not None and self.restart_at <= now
