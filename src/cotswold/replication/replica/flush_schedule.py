"""Flush schedule: spreads the writes of buckets evenly over time.

Knows: names of buckets, since when each is dirty. Does not know: the changes, disks, clocks (callers pass the
time).

    event                                   effect
    a bucket becomes dirty                  it joins the end of the queue
    time passes                             buckets become due at a rate that flushes all within ``seconds``
    a bucket is flushed                     it is clean until it changes again
    more buckets are flushed than are due   the others become due later
    the disk accepts nothing                all keep their place and age

So no bucket stays dirty for longer than ``seconds``, if the disk accepts them.
"""

from __future__ import annotations

from collections.abc import Collection


class FlushSchedule:
    """Flush schedule of one server."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        """Seconds within which all dirty buckets become due; may be changed."""
        self._dirty_since: dict[str, float] = {}
        """Start of the dirty time of each bucket, the oldest first."""
        self._noted = self._credited_at = now
        """Times of the last call of `note` and of `due`."""
        self._credit = 0.0
        """Number of due buckets, with a fraction for later. A negative value counts the buckets that were
        flushed early."""
        self._max_early = 0
        """Number of dirty buckets when some were last due: an upper bound of those flushed early."""

    def note(self, different: Collection[str], now: float) -> None:
        """Record the buckets that are dirty now."""
        for bucket in different:  # a bucket that was clean at the last call may be dirty since then
            self._dirty_since.setdefault(bucket, self._noted)
        if len(self._dirty_since) > len(different):
            these = set(different)
            self._dirty_since = {
                bucket: since for bucket, since in self._dirty_since.items() if bucket in these
            }
        self._noted = now

    def due(self, now: float) -> list[str]:
        """Return the buckets to flush now, the oldest first; call `flushed` for each."""
        passed, self._credited_at = now - self._credited_at, now
        count = len(self._dirty_since)
        share = self._credit + count * passed / self.seconds
        self._credit = max(-self._max_early, min(count + 1, share))
        late = sum(now - since >= self.seconds for since in self._dirty_since.values())
        due = self.all[: max(int(self._credit), late)]
        if due:
            self._max_early = count
        return due

    @property
    def all(self) -> list[str]:
        """Dirty buckets, the oldest first; call `flushed` for each."""
        return list(self._dirty_since)

    def dirty_since(self, bucket: str) -> float:
        """Return a time at or before the bucket's oldest unflushed change."""
        return self._dirty_since[bucket]

    def flushed(self, bucket: str) -> None:
        """Record that a bucket was flushed, whether it was due or not."""
        del self._dirty_since[bucket]
        self._credit -= 1

    def window_seconds(self, now: float) -> float:
        """Return the age in seconds of the oldest unflushed change."""
        return max((now - since for since in self._dirty_since.values()), default=0.0)
