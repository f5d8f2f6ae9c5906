"""Who has been silent for too long, as one listener judges it, and for how long that one stood still itself.

Knows: counters of beats, limits, seconds on the listener's own clock. Does not know: threads, stores, the
time.

Only time in which the listener was awake counts: a process that was stopped itself, or could not reach the
store for a while, must not take what it missed for the death of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotswold.launch.watch.role import Role


@dataclass(frozen=True)
class Silence:
    """Silence of each of several ranks, in seconds during which this listener listened.

    ``longest_gap_seconds`` is the most that one interval between two hearings counts; ``now`` the time of the
    last hearing.
    """

    longest_gap_seconds: float
    now: float
    _counts: Mapping[int, int] = field(default_factory=dict)
    _seconds: Mapping[int, float] = field(default_factory=dict)

    def after(self, counts: Mapping[int, int], now: float) -> Silence:
        """The same after hearing the present counters of the ranks that are watched; others are forgotten."""
        awake = min(now - self.now, self.longest_gap_seconds)
        seconds = {
            rank: self._seconds[rank] + awake if self._counts.get(rank) == count else 0.0
            for rank, count in counts.items()
        }
        return replace(self, now=now, _counts=dict(counts), _seconds=seconds)

    def longer_than(self, timeout_seconds: float) -> int | None:
        """The rank that has been silent for longest, if for longer than this."""
        longest = max(self._seconds, key=lambda rank: self._seconds[rank], default=None)
        return longest if longest is not None and self._seconds[longest] > timeout_seconds else None


@dataclass(frozen=True)
class Standstill:
    """For how long this process stood still the last time, 0 once nobody can have given it up for that."""

    looked_at: float
    resumed_at: float
    seconds: float = 0.0

    def after(self, now: float, role: Role) -> Standstill:
        """The same at the next look at the clock."""
        elapsed = now - self.looked_at
        if elapsed > role.timeout_seconds / 2:
            return Standstill(now, now, elapsed)
        forgotten = role.timeout_seconds + role.suspicious_timeout_seconds
        return Standstill(now, self.resumed_at, 0.0 if now - self.resumed_at > forgotten else self.seconds)
