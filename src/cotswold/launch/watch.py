"""Who has been silent for too long, as one listener judges it.

Knows: counters of beats, seconds on the listener's own clock. Does not know: threads, stores, the time.

Only time in which the listener was awake counts: a process that was stopped itself, or could not reach the
store for a while, must not take what it missed for the death of others.
"""

from __future__ import annotations

from collections.abc import Mapping


class Watch:
    """Silence of each of several ranks, in seconds during which this listener listened.

    ``longest_gap_seconds`` is the most that one interval between two hearings counts.
    """

    def __init__(self, longest_gap_seconds: float, now: float) -> None:
        self._longest_gap = longest_gap_seconds
        self._now = now
        self._last: dict[int, str] = {}
        self._silent: dict[int, float] = {}

    def hear(self, beats: Mapping[int, str], now: float) -> None:
        """Take in the present counters of the ranks that are to be watched; others are forgotten."""
        awake = min(now - self._now, self._longest_gap)
        self._now = now
        self._silent = {
            rank: self._silent[rank] + awake if self._last.get(rank) == beat else 0.0
            for rank, beat in beats.items()
        }
        self._last = dict(beats)

    def dead(self, patience_seconds: float) -> int | None:
        """The rank that has been silent for longest, if for longer than this."""
        longest = max(self._silent, key=lambda rank: self._silent[rank], default=None)
        return longest if longest is not None and self._silent[longest] > patience_seconds else None
