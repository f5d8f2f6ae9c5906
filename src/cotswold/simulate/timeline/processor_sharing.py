"""Processor sharing: ranks have equal parts of a device, and messages may take some of its time.

Knows: virtual time of processor sharing. Does not know: what is computed, events.
"""

from __future__ import annotations

from math import inf


class SharedDevice:
    """Work in progress on one device; every method takes the current time."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}
        self._virtual = 0.0
        self._now = 0.0
        self._taken: list[float] = []
        self.version = 0
        """Version number, which changes whenever an earlier result of `next_end` becomes invalid."""

    def begin(self, now: float, rank: int, seconds: float) -> None:
        """Begin a rank's computation."""
        self._advance(now)
        self._done[rank] = self._virtual + seconds

    def end(self, now: float, rank: int) -> None:
        """End a rank's computation."""
        self._advance(now)
        del self._done[rank]

    def take(self, now: float, left: float) -> None:
        """Begin a message that leaves the fraction ``left`` of the device to computation."""
        self._advance(now)
        self._taken.append(left)

    def end_message(self, now: float, left: float) -> None:
        """End a message that left that fraction."""
        self._advance(now)
        self._taken.remove(left)

    def next_end(self) -> tuple[float, int] | None:
        """Return the time of the next end of work, and its rank; None if no rank is progressing."""
        if not self._done or not self._rate:
            return None
        rank = min(self._done, key=lambda each: self._done[each])
        return self._now + (self._done[rank] - self._virtual) / self._rate, rank

    @property
    def _rate(self) -> float:
        """Seconds of work that each rank completes per second."""
        return min(self._taken, default=1.0) / len(self._done) if self._done else inf

    def _advance(self, now: float) -> None:
        if self._done:
            self._virtual += (now - self._now) * self._rate
        self._now = now
        self.version += 1
