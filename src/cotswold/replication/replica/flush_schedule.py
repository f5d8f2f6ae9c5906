"""When each bucket is given to the disk: evenly over time, so that no moment has much to copy.

Knows: names of buckets, since when each is different from what the disk was given. Does not know: what is
different, disks, clocks (it is told the time).

    what happens                            what follows
    a bucket is different                   it is behind all others that are
    time passes                             as many of the first are due as that in ``seconds`` all are
    one is given to the disk                it is not different, until it is again
    more are given than are due             so much later others are
    the disk takes nothing                  all stay, with the ages that they have

So none is different for longer than ``seconds`` before it is given, if the disk takes them.
"""

from __future__ import annotations

from collections.abc import Collection


class Spreading:
    """That of one server."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        """In which all that are different are due; may be set."""
        self._since: dict[str, float] = {}
        """By bucket, the oldest first."""
        self._noted = self._shared = now
        """When it was told last what is different, and when buckets were due last."""
        self._share = 0.0
        """Buckets that are due: a part of one is kept for later. Below zero so many were given early."""
        self._early_most = 0
        """How many were different when some were due last: more cannot have been given early."""

    def note(self, different: Collection[str], now: float) -> None:
        """These are different at this time, and no others."""
        for bucket in different:  # what was not when it was noted last may be since then
            self._since.setdefault(bucket, self._noted)
        if len(self._since) > len(different):
            these = set(different)
            self._since = {bucket: since for bucket, since in self._since.items() if bucket in these}
        self._noted = now

    def due(self, now: float) -> list[str]:
        """Those that are to be given now, the oldest first; then `given`."""
        passed, self._shared = now - self._shared, now
        count = len(self._since)
        share = self._share + count * passed / self.seconds
        self._share = max(-self._early_most, min(count + 1, share))
        late = sum(now - since >= self.seconds for since in self._since.values())
        due = self.all[: max(int(self._share), late)]
        if due:
            self._early_most = count
        return due

    @property
    def all(self) -> list[str]:
        """Those that are different, the oldest first; then `given`."""
        return list(self._since)

    def since(self, bucket: str) -> float:
        """When its oldest change was made that the disk was not given, or before."""
        return self._since[bucket]

    def given(self, bucket: str) -> None:
        """The disk was given it as it is, whether it was due or not."""
        del self._since[bucket]
        self._share -= 1

    def window_seconds(self, now: float) -> float:
        """How old the oldest change is that the disk was not given."""
        return max((now - since for since in self._since.values()), default=0.0)
