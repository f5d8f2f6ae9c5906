"""Backlog of writes to a block store: what folds, what is due, how much could be lost.

Knows: snapshots, their sizes, times passed by the caller. Does not know: clocks, threads, stores.

A snapshot of a bucket folds into the pending one: the newer head, and the newer contents of every block. So
many changes are written once (Chilimbi et al. 2014, section 3.3.2). One batch is written at a time. Newer
snapshots of its buckets wait behind it and fold over it if it fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cotswold.replication.disk.records import BucketSnapshot

MAX_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Policy:
    """Limits of the backlog, and the retry interval."""

    bytes_max: int = 256 << 20
    """Maximum bytes pending or being written, except for a single larger snapshot."""
    group_bytes: int = 32 << 20
    """Maximum bytes of a batch, except for a single larger snapshot."""
    retry_seconds: float = 0.1
    """Seconds before the first retry of a failed write; doubled for each further one, up to 5 s."""


@dataclass(frozen=True)
class _QueuedSnapshot:
    snapshot: BucketSnapshot
    since: float
    """Time of its oldest change."""
    bytes: int

    @classmethod
    def of(cls, snapshot: BucketSnapshot, since: float) -> _QueuedSnapshot:
        return cls(snapshot, since, snapshot.bytes)

    def replace(self, older: _QueuedSnapshot | None) -> _QueuedSnapshot:
        """Return this snapshot folded over an older one of the same bucket."""
        if older is None:
            return self
        blocks = {**older.snapshot.blocks, **self.snapshot.blocks}
        return self.of(replace(self.snapshot, blocks=blocks), min(older.since, self.since))


class Backlog:
    """Pending snapshots: at most one per bucket, and one more that is being written."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queued: dict[str, _QueuedSnapshot] = {}
        self._writing: dict[str, _QueuedSnapshot] = {}
        self._retry_at = float("-inf")
        self._failures = 0

    @property
    def bytes(self) -> int:
        """Bytes pending or being written."""
        return sum(each.bytes for each in self._all())

    @property
    def is_empty(self) -> bool:
        """True if everything is on disk."""
        return not self._queued and not self._writing

    def offer(self, snapshot: BucketSnapshot, since: float) -> bool:
        """Add a snapshot whose oldest change was made at ``since``; False, without a change, if there is
        no room."""
        waits = self._queued.get(snapshot.bucket)
        folded = _QueuedSnapshot.of(snapshot, since).replace(waits)
        others = self.bytes - (waits.bytes if waits else 0)
        is_alone = not others
        if others + folded.bytes > self._policy.bytes_max and not is_alone:
            return False
        self._queued[snapshot.bucket] = folded
        return True

    def forget(self, bucket: str) -> None:
        """Drop all snapshots of a bucket."""
        self._queued.pop(bucket, None)
        self._writing.pop(bucket, None)

    def due_at(self) -> float | None:
        """Return the time at which the next batch is due, which may have passed; None if there is none."""
        if self._writing or not self._queued:
            return None
        return self._retry_at

    def take_batch(self, now: float) -> tuple[BucketSnapshot, ...]:
        """Return the batch that is due, oldest changes first, and mark it as being written."""
        due = self.due_at()
        return self._take_all() if due is not None and due <= now else ()

    def _take_all(self) -> tuple[BucketSnapshot, ...]:
        assert not self._writing
        left = self._policy.group_bytes
        for bucket, each in sorted(self._queued.items(), key=lambda item: item[1].since):
            if self._writing and each.bytes > left:
                break
            left -= each.bytes
            self._writing[bucket] = self._queued.pop(bucket)
        return tuple(each.snapshot for each in self._writing.values())

    def written(self) -> tuple[tuple[str, int], ...]:
        """Record that the batch is on disk; return (bucket, index) of its buckets that were not dropped
        meanwhile."""
        found = tuple((bucket, each.snapshot.index) for bucket, each in self._writing.items())
        self._writing, self._failures, self._retry_at = {}, 0, float("-inf")
        return found

    def failed(self, now: float) -> None:
        """Record that the batch failed: it is pending again, under newer snapshots."""
        for bucket, older in self._writing.items():
            newer = self._queued.get(bucket)
            self._queued[bucket] = older if newer is None else newer.replace(older)
        self._writing = {}
        self._retry_at = now + min(self._policy.retry_seconds * 2**self._failures, MAX_RETRY_SECONDS)
        self._failures = min(self._failures + 1, 30)  # more would overflow, not wait longer

    def retry_at(self) -> float:
        """Return the time before which no write starts, as the last one failed."""
        return self._retry_at

    def window_seconds(self, now: float) -> float:
        """Return the age of the oldest change that is not on disk: the loss if the process died now."""
        return max((now - each.since for each in self._all()), default=0.0)

    def _all(self) -> Iterable[_QueuedSnapshot]:
        return (*self._queued.values(), *self._writing.values())
