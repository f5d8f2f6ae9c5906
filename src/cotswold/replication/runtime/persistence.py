"""Flushing a server's changes to its disk, and how much could be lost meanwhile.

Knows: the replica server, the disk, which buckets are due (`replica.flush_schedule`). Does not know: the
contents of buckets, the file format.

The disk gets a quarter of ``flush_seconds``, or three times its slowest recent write, up to about a half. For
the rest of the time a change waits in memory, where later changes fold into it. This bound holds while the
disk is fast enough. If the disk is too slow, nothing waits for it: changes fold for longer, the *window* (the
age of the oldest change that is not on the disk) grows, and an event says so, with the reason. If the process
itself stalled, for example because it was suspended, the event says that instead, since the disk could not
receive anything. If it stalls repeatedly, as on an overloaded host, the event also has the window.

Each write costs as much processor time as some MiB of contents, however small it is. So buckets are written
in batches of that size, even if only the first of them is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cotswold.replication.replica.flush_schedule import FlushSchedule
from cotswold.replication.replica.server import ReplicaServer
from cotswold.replication.runtime.disk import Disk
from cotswold.shards.runtime.arithmetic import Array, bytes_of
from cotswold.wire.lifecycle import FlushBacklog
from cotswold.wire.names import run_of

WAIT_FRACTION, MIN_WAIT_FRACTION = 0.75, 0.45
"""Fraction of ``flush_seconds`` that a change waits in memory, for a fast and for a slow disk."""
_SLOWEST_WRITES = 3.0
"""Multiple of the slowest write that is reserved for the disk: one in progress, one that follows, and a
margin."""
_BATCH_BYTES = 16 << 20
"""Bytes per batch: 0.41 ms of processor time per MiB, compared with 2.2 ms for single buckets, and a copy
that takes 1 ms."""
_LATE_FACTOR = 2.0
"""Multiple of ``flush_seconds`` from which on the window is too long."""
_RETRY_SECONDS = 0.2
"""Seconds until the next offer to a disk whose queue was full."""
_STALL_SECONDS = 1.0
"""Seconds without a tick after which the process counts as stalled."""
_REPORT_SECONDS = 10.0
"""Minimum interval between two events about a long window, and between two about a stall."""


class Persistence:
    """Persistence of one server process."""

    def __init__(self, machine: ReplicaServer[Array], disk: Disk, flush_seconds: float, now: float) -> None:
        self._machine, self._disk, self._flush_seconds = machine, disk, flush_seconds
        self._schedule = FlushSchedule(WAIT_FRACTION * flush_seconds, now)
        self._offer_at = now
        self._longest = 0.0
        """The longest window so far."""
        self._late_window: float | None = None
        """The longest window since an event said that it is too long."""
        self._checked_at = now
        """Time of the last check of the window."""
        self._stall_end = float("-inf")
        """End of the last stall of this process."""
        self._is_repeated_stall = False
        """True if another stall preceded it shortly before."""
        self._late_reported_at = self._stall_reported_at = float("-inf")

    def tick(self, now: float) -> None:
        """Process the passing of time; call it many times per ``flush_seconds``."""
        self._disk.set_cluster(self._machine.cluster, now)
        self._forget()
        for bucket in self._machine.take_reads():
            self._disk.read(bucket, partial(self._machine.on_read, bucket))
        self._disk.scrub(now)
        self._schedule.note(self._machine.dirty, now)
        if now >= self._offer_at:
            self._flush(now)
        self._check_window(now)

    def finish(self, now: float) -> bool:
        """Give the disk all changes, at the end. False if it has no room now."""
        self._forget()
        self._schedule.note(self._machine.dirty, now)
        buckets = self._schedule.all
        return self._offer(buckets, len(buckets))

    def unsaved(self, run: str, now: float) -> FlushBacklog:
        """Return how much could be lost at this moment, of one run or of all."""
        copies = self._machine.copies
        of = [copies[name] for name in self._machine.dirty if run in ("", run_of(name))]
        count = sum(bytes_of(tuple(each.unsaved_buffers)) for each in of)
        dirty = count + self._disk.unsaved_bytes
        return FlushBacklog(dirty, self._window(now), self._longest, self._flush_seconds)

    def _flush(self, now: float) -> None:
        rest = _SLOWEST_WRITES * self._disk.slowest_seconds / self._flush_seconds
        after = max(MIN_WAIT_FRACTION, min(WAIT_FRACTION, 1.0 - rest))
        self._schedule.seconds = after * self._flush_seconds
        due = self._schedule.due(now)
        if due and not self._offer(self._schedule.all, len(due)):
            self._offer_at = now + _RETRY_SECONDS

    def _offer(self, buckets: Sequence[str], minimum: int) -> bool:
        """Write the first ``minimum`` of these buckets, or more; False if there is no room for one."""
        given = 0
        with self._disk.batch():
            for place, bucket in enumerate(buckets):
                if place >= minimum and given >= _BATCH_BYTES:
                    break
                number, saved = self._machine.save(bucket)
                if not self._disk.write(number, saved, self._schedule.dirty_since(bucket)):
                    self._machine.unsaved(number)
                    return False
                self._schedule.flushed(bucket)
                given += bytes_of(tuple(saved.numbers.values()))
        return True

    def _forget(self) -> None:
        for bucket in self._machine.take_forgotten():
            self._disk.forget(bucket)

    def _window(self, now: float) -> float:
        return max(self._schedule.window_seconds(now), self._disk.window_seconds)

    def _check_window(self, now: float) -> None:
        """Report when the window becomes too long, and when it recovers."""
        window = self._window(now)
        self._longest = max(self._longest, window)
        self._check_stall(window, now)
        has_had_time = now - self._stall_end >= _LATE_FACTOR * self._flush_seconds  # time for the disk
        if not (has_had_time or self._is_repeated_stall) and self._late_window is None:
            return
        if window > _LATE_FACTOR * self._flush_seconds:
            if now - self._late_reported_at >= _REPORT_SECONDS:
                self._late_reported_at, self._late_window = now, self._late_window or window
                why = self._disk.pace if has_had_time else "this server stalled"
                self._disk.report(
                    f"unsaved changes are {window:.1f} s old, and flush_seconds is "
                    f"{self._flush_seconds:g}: {why}; if all servers die now, that much is lost"
                )
            if self._late_window is not None:
                self._late_window = max(self._late_window, window)
        elif self._late_window is not None and window <= self._flush_seconds:
            self._disk.report(
                f"unsaved changes are less than {self._flush_seconds:g} s old again; the oldest "
                f"was {self._late_window:.1f} s old"
            )
            self._late_window = None

    def _check_stall(self, window: float, now: float) -> None:
        """Report a stall of this process."""
        still, self._checked_at = now - self._checked_at, now
        late = _LATE_FACTOR * self._flush_seconds
        if still <= max(_STALL_SECONDS, late):
            return
        self._is_repeated_stall = now - still - self._stall_end < max(_REPORT_SECONDS, late)
        self._stall_end = now
        if now - self._stall_reported_at >= _REPORT_SECONDS:
            self._stall_reported_at = now
            self._disk.report(
                f"this server stalled for {still:.1f} s and wrote nothing to its disk: it was suspended, "
                f"or its host is overloaded; unsaved changes are {window:.1f} s old"
            )
