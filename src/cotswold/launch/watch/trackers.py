"""Trackers of other ranks' silence and of this process's own suspensions.

Knows: counters of beats, limits, seconds on this process's clock. Does not know: threads, stores, the time.

Only time in which this process was awake counts. A process that was stopped, or could not reach the store for
a while, must not take missed beats for the death of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cotswold.launch.watch.role import Role


@dataclass(frozen=True)
class SilenceTracker:
    """Seconds of silence of each rank, counted while this process was awake.

    ``longest_gap_seconds`` is the maximum that one interval between two readings counts; ``now`` is the time
    of the last reading.
    """

    longest_gap_seconds: float
    now: float
    _counts: Mapping[int, int] = field(default_factory=dict)
    _seconds: Mapping[int, float] = field(default_factory=dict)

    def advance(self, counts: Mapping[int, int], now: float) -> SilenceTracker:
        """Return the state after reading the counters of the watched ranks; other ranks are forgotten."""
        awake = min(now - self.now, self.longest_gap_seconds)
        seconds = {
            rank: self._seconds[rank] + awake if self._counts.get(rank) == count else 0.0
            for rank, count in counts.items()
        }
        return replace(self, now=now, _counts=dict(counts), _seconds=seconds)

    def find_silent_rank(self, timeout_seconds: float) -> int | None:
        """Return the rank that has been silent for longest, if for longer than the timeout."""
        longest = max(self._seconds, key=lambda rank: self._seconds[rank], default=None)
        return longest if longest is not None and self._seconds[longest] > timeout_seconds else None


@dataclass(frozen=True)
class SuspensionTracker:
    """Tracks the length of this process's last suspension in ``seconds``.

    The value is 0 once no other rank can have dropped this one for the suspension.
    """

    last_tick: float
    resumed_at: float
    seconds: float = 0.0

    def advance(self, now: float, role: Role) -> SuspensionTracker:
        """Return the state at the next reading of the clock."""
        elapsed = now - self.last_tick
        if elapsed > role.timeout_seconds / 2:
            return SuspensionTracker(now, now, elapsed)
        forgotten = role.timeout_seconds + role.suspicious_timeout_seconds
        return SuspensionTracker(
            now, self.resumed_at, 0.0 if now - self.resumed_at > forgotten else self.seconds
        )
