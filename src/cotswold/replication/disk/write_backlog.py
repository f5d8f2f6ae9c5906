"""What waits to be written to a block store: what folds, what is due, how much can be lost.

Knows: snapshots, their bytes, times that it is given. Does not know: clocks, threads, stores.

A snapshot of a bucket folds into the one that waits: the newer head, and of every block the newer contents.
So many changes are written once (Chilimbi et al. 2014, section 3.3.2). One group is written at a time; newer
snapshots of the same buckets wait behind it, and fold over it if it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cotswold.replication.disk.records import Snapshot

RETRY_SECONDS_MOST = 5.0


@dataclass(frozen=True)
class Policy:
    """How much may wait, and how soon what failed is tried again."""

    bytes_max: int = 256 << 20
    """Of all that waits or is being written, unless one snapshot alone has more."""
    group_bytes: int = 32 << 20
    """A group takes no more, unless one snapshot alone has more."""
    retry_seconds: float = 0.1
    """After a write that failed; twice as long after each further one, up to 5 s."""


@dataclass(frozen=True)
class _Waiting:
    snapshot: Snapshot
    since: float
    """When its oldest change was made."""
    bytes: int

    @classmethod
    def of(cls, snapshot: Snapshot, since: float) -> _Waiting:
        return cls(snapshot, since, snapshot.bytes)

    def over(self, older: _Waiting | None) -> _Waiting:
        """This one after an older one of the same bucket."""
        if older is None:
            return self
        blocks = {**older.snapshot.blocks, **self.snapshot.blocks}
        return self.of(replace(self.snapshot, blocks=blocks), min(older.since, self.since))


class Backlog:
    """Snapshots that wait; at most one a bucket, and one more that is being written."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: dict[str, _Waiting] = {}
        self._writing: dict[str, _Waiting] = {}
        self._retry_at = float("-inf")
        self._failures = 0

    @property
    def bytes(self) -> int:
        """Of all that waits or is being written."""
        return sum(each.bytes for each in self._all())

    @property
    def is_empty(self) -> bool:
        """Whether everything is on disk."""
        return not self._waiting and not self._writing

    def offer(self, snapshot: Snapshot, since: float) -> bool:
        """Take a snapshot whose oldest change was made at ``since``; False where there is no room, and then
        nothing is changed."""
        waits = self._waiting.get(snapshot.bucket)
        folded = _Waiting.of(snapshot, since).over(waits)
        others = self.bytes - (waits.bytes if waits else 0)
        is_alone = not others
        if others + folded.bytes > self._policy.bytes_max and not is_alone:
            return False
        self._waiting[snapshot.bucket] = folded
        return True

    def forget(self, bucket: str) -> None:
        """Nothing of a bucket is wanted any more."""
        self._waiting.pop(bucket, None)
        self._writing.pop(bucket, None)

    def due_at(self) -> float | None:
        """When the next group is to be taken, which may be past; None where nothing is to be."""
        if self._writing or not self._waiting:
            return None
        return self._retry_at

    def take(self, now: float) -> tuple[Snapshot, ...]:
        """The group that is due, oldest changes first; it is being written from now on."""
        due = self.due_at()
        return self._taken() if due is not None and due <= now else ()

    def _taken(self) -> tuple[Snapshot, ...]:
        assert not self._writing
        left = self._policy.group_bytes
        for bucket, each in sorted(self._waiting.items(), key=lambda item: item[1].since):
            if self._writing and each.bytes > left:
                break
            left -= each.bytes
            self._writing[bucket] = self._waiting.pop(bucket)
        return tuple(each.snapshot for each in self._writing.values())

    def written(self) -> tuple[tuple[str, int], ...]:
        """The group is on disk: (bucket, index) of what was in it and not forgotten meanwhile."""
        found = tuple((bucket, each.snapshot.index) for bucket, each in self._writing.items())
        self._writing, self._failures, self._retry_at = {}, 0, float("-inf")
        return found

    def failed(self, now: float) -> None:
        """The group could not be written: it waits again, under what is newer."""
        for bucket, older in self._writing.items():
            newer = self._waiting.get(bucket)
            self._waiting[bucket] = older if newer is None else newer.over(older)
        self._writing = {}
        self._retry_at = now + min(self._policy.retry_seconds * 2**self._failures, RETRY_SECONDS_MOST)
        self._failures = min(self._failures + 1, 30)  # more would overflow, and wait no longer

    def retry_at(self) -> float:
        """Before this time nothing is written, because the last write failed."""
        return self._retry_at

    def window_seconds(self, now: float) -> float:
        """How old the oldest change is that is not on disk: what is lost if the process dies now."""
        return max((now - each.since for each in self._all()), default=0.0)

    def _all(self) -> Iterable[_Waiting]:
        return (*self._waiting.values(), *self._writing.values())
