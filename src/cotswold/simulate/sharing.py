"""A device that several ranks share: each has an equal part of it, and messages may take some of its time.

Knows: virtual time of processor sharing. Does not know: what is computed, events.
"""

from __future__ import annotations

from math import inf


class SharedDevice:
    """Work in progress on one device; every method is given the present time."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}
        self._virtual = 0.0
        self._at = 0.0
        self._taken: list[float] = []
        self.version = 0
        """Changes whenever what was said of the next end no longer holds."""

    def begin(self, now: float, rank: int, seconds: float) -> None:
        """A rank begins to compute."""
        self._move(now)
        self._done[rank] = self._virtual + seconds

    def end(self, now: float, rank: int) -> None:
        """A rank is done."""
        self._move(now)
        del self._done[rank]

    def take(self, now: float, left: float) -> None:
        """A message begins that leaves the part ``left`` of the device to computation."""
        self._move(now)
        self._taken.append(left)

    def give_back(self, now: float, left: float) -> None:
        """A message that left that part is through."""
        self._move(now)
        self._taken.remove(left)

    def next_end(self) -> tuple[float, int] | None:
        """When the next rank will be done, and which; None where nobody is about to be."""
        if not self._done or not self._rate:
            return None
        rank = min(self._done, key=lambda each: self._done[each])
        return self._at + (self._done[rank] - self._virtual) / self._rate, rank

    @property
    def _rate(self) -> float:
        """Seconds of work that each rank gets done in a second."""
        return min(self._taken, default=1.0) / len(self._done) if self._done else inf

    def _move(self, now: float) -> None:
        if self._done:
            self._virtual += (now - self._at) * self._rate
        self._at = now
        self.version += 1
