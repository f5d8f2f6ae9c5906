"""What may be lost where all servers die at once: the last that was acknowledged, and nothing before.

Knows: when each update was acknowledged, when groups were written down, what a bucket that begins another
life says that it has. Does not know: disks, who had what, ledgers.

A bucket is at rest where its group has been the same for a while: then its primary has put on its disk what
it acknowledged before that while. Of a bucket that is not, nothing is expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from tests.chaos.invariants import BrokenError

from cotswold.wire import Group, Ranges
from cotswold.wire.ranges import difference, union

_HEARD_SECONDS = 1.0
"""After which a primary has heard that it is one."""


class LossWindow:
    """That of each bucket."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """``seconds``: after which what is acknowledged is on the primary's disk; infinite where that may
        take any time."""
        self._seconds, self._clock = seconds, clock
        self._groups: dict[str, tuple[float, Group]] = {}
        """Since when they are written down."""
        self._said: dict[str, dict[tuple[int, int], tuple[float, Ranges]]] = defaultdict(dict)
        """By bucket, and by session and number: when they were acknowledged, of this life of the bucket."""
        self._must: dict[str, list[tuple[int, dict[int, Ranges]]]] = defaultdict(list)
        """By bucket: the life that was over, and what the next must have, by session."""

    def put(self, group: Group) -> None:
        """A group is written down."""
        known = self._groups.get(group.bucket)
        if known is not None and known[1].incarnation != group.incarnation:
            self._said.pop(group.bucket, None)
        self._groups[group.bucket] = self._clock(), group

    def acknowledged(self, bucket: str, session: int, number: int, samples: Ranges) -> None:
        """A server says that these are in a bucket."""
        self._said[bucket].setdefault((session, number), (self._clock(), samples))

    def is_expected(self, bucket: str, living: Collection[str]) -> bool:
        """Whether something of it must be on a disk by now."""
        return bool(self._saved(bucket, living))

    def outage(self, buckets: Collection[str], living: Collection[str]) -> None:
        """All who live die now, and of these buckets no disk is lost or damaged."""
        for bucket, (_, group) in self._groups.items():
            saved = self._saved(bucket, living) if bucket in buckets else {}
            if saved:
                self._must[bucket].append((group.incarnation, saved))
            else:  # what the life before had may have been on the disk that is lost
                self._must.pop(bucket, None)

    def revived(self, bucket: str, life: int, settled: Ranges, has: Mapping[int, Ranges]) -> None:
        """Another life has begun with what is ``settled``, and this, by session. Raises
        BrokenError."""
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
        """What must be on the primary's disk, by session."""
        since, group = self._groups[bucket]
        before = self._clock() - self._seconds
        if group.primary not in living or since + _HEARD_SECONDS > before:
            return {}
        found: dict[int, list[Ranges]] = defaultdict(list)
        for (session, _), (when, samples) in self._said[bucket].items():
            if when < before:
                found[session].append(samples)
        return {session: union(*some) for session, some in found.items()}
