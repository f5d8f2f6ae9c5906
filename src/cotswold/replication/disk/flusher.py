"""A thread that writes snapshots to a block store in the background.

Knows: a thread, a clock, a store's `write` and `drop`. Does not know: what is due and what folds
(`write_backlog`), why a write fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cotswold.errors import MachineError, UserError
from cotswold.replication.disk.records import BucketSnapshot
from cotswold.replication.disk.write_backlog import Backlog, Policy

Clock = Callable[[], float]


class SnapshotStore(Protocol):
    """The part of a store that a flusher uses."""

    def write(self, *snapshots: BucketSnapshot) -> None:
        """Write buckets to disk, all or none."""

    def drop(self, bucket: str) -> None:
        """Delete a bucket."""


@dataclass(frozen=True)
class WriteCompleted:
    """Result of a write: these buckets are on disk."""

    indices: tuple[tuple[str, int], ...]
    """(bucket, index)"""
    window_seconds: float
    """Age in seconds of the oldest change that is not on disk."""
    bytes: int = 0
    """Bytes that were written."""
    seconds: float = 0.0
    """Duration of the write."""


@dataclass(frozen=True)
class WriteFailed:
    """Result of a write: it failed and will be retried."""

    error: MachineError | UserError
    window_seconds: float


ReportResult = Callable[[WriteCompleted | WriteFailed], None]
"""Callback on the flusher's thread, without a lock: it may call `offer` and must not take long."""


class Flusher:
    """Writes snapshots in batches and reports what is on disk; thread-safe.

    It stops at an error that is not a CotswoldError, which is a mistake in the store: `offer` then raises it.
    """

    def __init__(
        self,
        store: SnapshotStore,
        report: ReportResult,
        policy: Policy | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store, self._report, self._clock = store, report, clock
        self._backlog = Backlog(policy or Policy())
        self._drops: dict[str, None] = {}
        self._is_dropping = self._is_closing = self._is_abandoned = False
        self._error: BaseException | None = None
        self._write_started_at: float | None = None
        """Start of the write in progress."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def offer(self, snapshot: BucketSnapshot, since: float | None = None) -> bool:
        """Submit a snapshot, whose oldest change was made at ``since`` [now, by its clock]. False if there is
        no room: offer a newer one later. It does not wait for the disk.

        The blocks must not change afterwards: they are views, not copies.
        """
        with self._changed:
            self._check()
            is_taken = self._backlog.offer(snapshot, self._clock() if since is None else since)
            self._changed.notify_all()
            return is_taken

    def batch(self) -> AbstractContextManager[object]:
        """Write as one batch, if it fits, what is offered inside this context; no write starts meanwhile."""
        return self._changed

    def drop(self, bucket: str) -> None:
        """Delete a bucket, in the store too; later offers are kept."""
        with self._changed:
            self._check()
            self._backlog.forget(bucket)
            self._drops[bucket] = None
            self._changed.notify_all()

    @property
    def window_seconds(self) -> float:
        """Age of the oldest change that is not on disk: the loss if the process died now."""
        with self._changed:
            return self._backlog.window_seconds(self._clock())

    @property
    def bytes(self) -> int:
        """Bytes that are not on disk."""
        with self._changed:
            return self._backlog.bytes

    @property
    def writing_seconds(self) -> float:
        """Duration of the write in progress so far; 0 if there is none."""
        with self._changed:
            return 0.0 if self._write_started_at is None else self._clock() - self._write_started_at

    def close(self, within_seconds: float) -> bool:
        """Write everything pending and end the thread; False if that takes too long.

        A write that blocks on the disk is abandoned together with the thread.
        """
        until = time.monotonic() + within_seconds
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_done or self._error is not None, within_seconds)
            is_done = self._is_done
            self._is_abandoned = True
            self._changed.notify_all()
        self._thread.join(max(0.0, until - time.monotonic()))
        return is_done

    @property
    def _is_done(self) -> bool:
        return self._backlog.is_empty and not self._drops and not self._is_dropping

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError("the flusher has stopped") from self._error
        if self._is_closing:
            raise RuntimeError("the flusher is closed")

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._do(*work)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> tuple[tuple[str, ...], tuple[BucketSnapshot, ...]] | None:
        """Return the next deletions and the next batch; None at the end."""
        with self._changed:
            while not self._is_abandoned:
                now = self._clock()
                drops = tuple(self._drops) if self._backlog.retry_at() <= now else ()
                group = self._backlog.take_batch(now)
                if drops or group:
                    self._drops, self._is_dropping = {}, bool(drops)
                    self._write_started_at = now
                    return drops, group
                if self._is_closing and self._is_done:
                    break
                self._changed.wait(self._pause(now))
        return None

    def _pause(self, now: float) -> float | None:
        """Return the seconds until something may be due; None if only a change can make it so."""
        if self._drops or self._is_closing:
            return max(0.0, self._backlog.retry_at() - now)
        due = self._backlog.due_at()
        return None if due is None else max(0.0, due - now)

    def _do(self, drops: tuple[str, ...], group: tuple[BucketSnapshot, ...]) -> None:
        try:
            for bucket in drops:
                self._store.drop(bucket)
            if group:
                self._store.write(*group)
        except (MachineError, UserError) as error:
            with self._changed:
                self._drops = {**dict.fromkeys(drops), **self._drops}
                now = self._clock()
                self._backlog.failed(now)
                said: WriteCompleted | WriteFailed = WriteFailed(error, self._backlog.window_seconds(now))
        else:
            with self._changed:
                now, indices = self._clock(), self._backlog.written()
                assert self._write_started_at is not None, "a write is in progress"
                count, took = sum(each.bytes for each in group), now - self._write_started_at
                said = WriteCompleted(indices, self._backlog.window_seconds(now), count, took)
        with self._changed:
            self._is_dropping, self._write_started_at = False, None
            self._changed.notify_all()
        self._report(said)
