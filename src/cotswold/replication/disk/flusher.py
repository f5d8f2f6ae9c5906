"""A thread that writes snapshots to a block store behind whoever makes them.

Knows: a thread, a clock, a store's `write` and `drop`. Does not know: what is due and what folds
(`backlog`), why a write fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cotswold.errors import MachineError, UserError
from cotswold.replication.disk.records import Snapshot
from cotswold.replication.disk.write_backlog import Backlog, Policy

Clock = Callable[[], float]


class Writes(Protocol):
    """What a flusher wants of a store."""

    def write(self, *snapshots: Snapshot) -> None:
        """Put buckets on disk, all or none."""

    def drop(self, bucket: str) -> None:
        """Forget a bucket."""


@dataclass(frozen=True)
class Written:
    """These are on disk now."""

    indices: tuple[tuple[str, int], ...]
    """(bucket, index)"""
    window_seconds: float
    """How old the oldest change is that is not."""
    bytes: int = 0
    """Of what was written."""
    seconds: float = 0.0
    """That it took."""


@dataclass(frozen=True)
class WriteFailed:
    """A write failed, and is tried again."""

    error: MachineError | UserError
    window_seconds: float


Tell = Callable[[Written | WriteFailed], None]
"""Called on the flusher's thread, without a lock: it may offer, and should not take long."""


class Flusher:
    """Writes what it is offered, in groups, and tells what is on disk; threads may share it.

    It stops at an error that is no CotswoldError, which is a mistake in the store: `offer` raises it then.
    """

    def __init__(
        self, store: Writes, tell: Tell, policy: Policy | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._store, self._tell, self._clock = store, tell, clock
        self._backlog = Backlog(policy or Policy())
        self._drops: dict[str, None] = {}
        self._is_dropping = self._is_closing = self._is_abandoned = False
        self._broken: BaseException | None = None
        self._began: float | None = None
        """When the write began that is under way."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()

    def offer(self, snapshot: Snapshot, since: float | None = None) -> bool:
        """Have a snapshot written, whose oldest change was made at ``since`` (now, by its clock, where
        it is None). False where there is no room: offer a newer one later. It waits for no disk.

        The blocks must not be changed afterwards: they are views, not copies.
        """
        with self._changed:
            self._check()
            is_taken = self._backlog.offer(snapshot, self._clock() if since is None else since)
            self._changed.notify_all()
            return is_taken

    def together(self) -> AbstractContextManager[object]:
        """What is offered within is taken at once, as far as a group has room; meanwhile nothing is taken."""
        return self._changed

    def drop(self, bucket: str) -> None:
        """Have a bucket forgotten, in the store too; what is offered afterwards is kept."""
        with self._changed:
            self._check()
            self._backlog.forget(bucket)
            self._drops[bucket] = None
            self._changed.notify_all()

    @property
    def window_seconds(self) -> float:
        """How old the oldest change is that is not on disk: what is lost if the process dies now."""
        with self._changed:
            return self._backlog.window_seconds(self._clock())

    @property
    def bytes(self) -> int:
        """Of all that is not on disk."""
        with self._changed:
            return self._backlog.bytes

    @property
    def writing_seconds(self) -> float:
        """How long the write has taken so far that is under way; 0 where none is."""
        with self._changed:
            return 0.0 if self._began is None else self._clock() - self._began

    def close(self, within_seconds: float) -> bool:
        """Write all that waits at once, and end the thread; False where that was not done in time.

        A write that the disk holds up is left behind, with its thread.
        """
        until = time.monotonic() + within_seconds
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_done or self._broken is not None, within_seconds)
            is_done = self._is_done
            self._is_abandoned = True
            self._changed.notify_all()
        self._thread.join(max(0.0, until - time.monotonic()))
        return is_done

    @property
    def _is_done(self) -> bool:
        return self._backlog.is_empty and not self._drops and not self._is_dropping

    def _check(self) -> None:
        if self._broken is not None:
            raise RuntimeError("the flusher has stopped") from self._broken
        if self._is_closing:
            raise RuntimeError("the flusher is closed")

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                self._do(*work)
        except BaseException as error:
            with self._changed:
                self._broken = error
                self._changed.notify_all()

    def _next(self) -> tuple[tuple[str, ...], tuple[Snapshot, ...]] | None:
        """The drops and the group that come next; None where there will be none."""
        with self._changed:
            while not self._is_abandoned:
                now = self._clock()
                drops = tuple(self._drops) if self._backlog.retry_at() <= now else ()
                group = self._backlog.take(now)
                if drops or group:
                    self._drops, self._is_dropping = {}, bool(drops)
                    self._began = now
                    return drops, group
                if self._is_closing and self._is_done:
                    break
                self._changed.wait(self._pause(now))
        return None

    def _pause(self, now: float) -> float | None:
        """Seconds until something may be due; None where only a change can make it so."""
        if self._drops or self._is_closing:
            return max(0.0, self._backlog.retry_at() - now)
        due = self._backlog.due_at()
        return None if due is None else max(0.0, due - now)

    def _do(self, drops: tuple[str, ...], group: tuple[Snapshot, ...]) -> None:
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
                said: Written | WriteFailed = WriteFailed(error, self._backlog.window_seconds(now))
        else:
            with self._changed:
                now, indices = self._clock(), self._backlog.written()
                assert self._began is not None, "it was begun"
                count, took = sum(each.bytes for each in group), now - self._began
                said = Written(indices, self._backlog.window_seconds(now), count, took)
        with self._changed:
            self._is_dropping, self._began = False, None
            self._changed.notify_all()
        self._tell(said)
