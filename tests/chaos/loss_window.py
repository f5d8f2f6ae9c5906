"""Judge of the loss if all servers die at once: only the latest acknowledged updates may be lost.

Knows: times of acknowledgements and of stored groups, the contents that a revived bucket reports. Does not
know: disks, contents of copies, ledgers.

A bucket is at rest if its group has not changed for a while: then its primary has saved everything
acknowledged before that while. Nothing is required of other buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from tests.chaos.invariants import BrokenError

from cotswold.wire import Group, Ranges
from cotswold.wire.ranges import difference, union

_HEARD_SECONDS = 1.0
"""Seconds after which a primary knows its role."""


class LossWindow:
    """Loss windows of the buckets."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """``seconds``: time after which acknowledged updates are on the primary's disk; infinite if it is
        unbounded."""
        self._seconds, self._clock = seconds, clock
        self._groups: dict[str, tuple[float, Group]] = {}
        """Stored groups and the time since which they are stored."""
        self._said: dict[str, dict[tuple[int, int], tuple[float, Ranges]]] = defaultdict(dict)
        """Time and samples of acknowledged updates in the current life of the bucket, by bucket, session and
        number."""
        self._must: dict[str, list[tuple[int, dict[int, Ranges]]]] = defaultdict(list)
        """By bucket: the previous life, and the samples that the next life must have, by session."""

    def put(self, group: Group) -> None:
        """Record a stored group."""
        known = self._groups.get(group.bucket)
        if known is not None and known[1].incarnation != group.incarnation:
            self._said.pop(group.bucket, None)
        self._groups[group.bucket] = self._clock(), group

    def acknowledged(self, bucket: str, session: int, number: int, samples: Ranges) -> None:
        """Record an acknowledgement."""
        self._said[bucket].setdefault((session, number), (self._clock(), samples))

    def is_expected(self, bucket: str, living: Collection[str]) -> bool:
        """True if part of a bucket must be on a disk by now."""
        return bool(self._saved(bucket, living))

    def outage(self, buckets: Collection[str], living: Collection[str]) -> None:
        """Record that all live servers die now, without loss or damage of these buckets on disks."""
        for bucket, (_, group) in self._groups.items():
            saved = self._saved(bucket, living) if bucket in buckets else {}
            if saved:
                self._must[bucket].append((group.incarnation, saved))
            else:  # the previous life may have been on the lost disk
                self._must.pop(bucket, None)

    def revived(self, bucket: str, life: int, settled: Ranges, has: Mapping[int, Ranges]) -> None:
        """Check a revived bucket that has the ``settled`` samples and these, by session. Raises
        BrokenError.
        """
        over = [saved for before, saved in self._must[bucket] if before < life]
        self._must[bucket] = [each for each in self._must[bucket] if each[0] >= life]
        for session, samples in (each for saved in over for each in saved.items()):
            lost = difference(samples, union(settled, has.get(session, ())))
            if lost:
                raise BrokenError(
                    f"{bucket}: samples {lost} of session {session} were acknowledged more than "
                    f"{self._seconds:.2f} s before the outage, and life {life} has them not"
                )

    def _saved(self, bucket: str, living: Collection[str]) -> dict[int, Ranges]:
        """Return the samples that must be on the primary's disk, by session."""
        since, group = self._groups[bucket]
        before = self._clock() - self._seconds
        if group.primary not in living or since + _HEARD_SECONDS > before:
            return {}
        found: dict[int, list[Ranges]] = defaultdict(list)
        for (session, _), (when, samples) in self._said[bucket].items():
            if when < before:
                found[session].append(samples)
        return {session: union(*some) for session, some in found.items()}
