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

GIVEN_AFTER, GIVEN_AFTER_LEAST = 0.75, 0.45
"""Fraction of ``flush_seconds`` that a change waits in memory, for a fast and for a slow disk."""
_SLOWEST_WRITES = 3.0
"""Multiple of the slowest write that is reserved for the disk: one in progress, one that follows, and a
margin."""
_TOGETHER_BYTES = 16 << 20
"""Bytes per batch: 0.41 ms of processor time per MiB, compared with 2.2 ms for single buckets, and a copy
that takes 1 ms."""
_LATE = 2.0
"""Multiple of ``flush_seconds`` from which on the window is too long."""
_AGAIN_SECONDS = 0.2
"""Seconds until the next offer to a disk whose queue was full."""
_STILL_SECONDS = 1.0
"""Seconds without a tick after which the process counts as stalled."""
_SAY_SECONDS = 10.0
"""Minimum interval between two events about a long window, and between two about a stall."""


class Persistence:
    """Persistence of one server process."""

    def __init__(self, machine: ReplicaServer[Array], disk: Disk, flush_seconds: float, now: float) -> None:
        self._machine, self._disk, self._flush_seconds = machine, disk, flush_seconds
        self._spreading = FlushSchedule(GIVEN_AFTER * flush_seconds, now)
        self._offer_at = now
        self._longest = 0.0
        """The longest window so far."""
        self._late: float | None = None
        """The longest window since an event said that it is too long."""
        self._watched = now
        """Time of the last check of the window."""
        self._stood = float("-inf")
        """End of the last stall of this process."""
        self._is_again = False
        """True if another stall preceded it shortly before."""
        self._said_late = self._said_still = float("-inf")

    def tick(self, now: float) -> None:
        """Process the passing of time; call it many times per ``flush_seconds``."""
        self._disk.belong(self._machine.cluster, now)
        self._forget()
        for bucket in self._machine.take_recalls():
            self._disk.read(bucket, partial(self._machine.recalled, bucket))
        self._disk.scrub(now)
        self._spreading.note(self._machine.dirty, now)
        if now >= self._offer_at:
            self._give(now)
        self._watch(now)

    def finish(self, now: float) -> bool:
        """Give the disk all changes, at the end. False if it has no room now."""
        self._forget()
        self._spreading.note(self._machine.dirty, now)
        buckets = self._spreading.all
        return self._offer(buckets, len(buckets))

    def unsaved(self, run: str, now: float) -> FlushBacklog:
        """Return how much could be lost at this moment, of one run or of all."""
        copies = self._machine.copies
        of = [copies[name] for name in self._machine.dirty if run in ("", run_of(name))]
        count = sum(bytes_of(tuple(each.unsaved_buffers)) for each in of)
        dirty = count + self._disk.unsaved_bytes
        return FlushBacklog(dirty, self._window(now), self._longest, self._flush_seconds)

    def _give(self, now: float) -> None:
        rest = _SLOWEST_WRITES * self._disk.slowest_seconds / self._flush_seconds
        after = max(GIVEN_AFTER_LEAST, min(GIVEN_AFTER, 1.0 - rest))
        self._spreading.seconds = after * self._flush_seconds
        due = self._spreading.due(now)
        if due and not self._offer(self._spreading.all, len(due)):
            self._offer_at = now + _AGAIN_SECONDS

    def _offer(self, buckets: Sequence[str], least: int) -> bool:
        """Write the first ``least`` of these buckets, or more; False if there is no room for one."""
        given = 0
        with self._disk.together():
            for place, bucket in enumerate(buckets):
                if place >= least and given >= _TOGETHER_BYTES:
                    break
                number, saved = self._machine.save(bucket)
                if not self._disk.write(number, saved, self._spreading.since(bucket)):
                    self._machine.unsaved(number)
                    return False
                self._spreading.flushed(bucket)
                given += bytes_of(tuple(saved.numbers.values()))
        return True

    def _forget(self) -> None:
        for bucket in self._machine.take_forgotten():
            self._disk.forget(bucket)

    def _window(self, now: float) -> float:
        return max(self._spreading.window_seconds(now), self._disk.window_seconds)

    def _watch(self, now: float) -> None:
        """Report when the window becomes too long, and when it recovers."""
        window = self._window(now)
        self._longest = max(self._longest, window)
        self._watch_itself(window, now)
        has_had_time = now - self._stood >= _LATE * self._flush_seconds  # time for the disk
        if not (has_had_time or self._is_again) and self._late is None:
            return
        if window > _LATE * self._flush_seconds:
            if now - self._said_late >= _SAY_SECONDS:
                self._said_late, self._late = now, self._late or window
                why = self._disk.pace if has_had_time else "this server stalled"
                self._disk.say(
                    f"unsaved changes are {window:.1f} s old, and flush_seconds is "
                    f"{self._flush_seconds:g}: {why}; if all servers die now, that much is lost"
                )
            if self._late is not None:
                self._late = max(self._late, window)
        elif self._late is not None and window <= self._flush_seconds:
            self._disk.say(
                f"unsaved changes are less than {self._flush_seconds:g} s old again; the oldest "
                f"was {self._late:.1f} s old"
            )
            self._late = None

    def _watch_itself(self, window: float, now: float) -> None:
        """Report a stall of this process."""
        still, self._watched = now - self._watched, now
        late = _LATE * self._flush_seconds
        if still <= max(_STILL_SECONDS, late):
            return
        self._is_again = now - still - self._stood < max(_SAY_SECONDS, late)
        self._stood = now
        if now - self._said_still >= _SAY_SECONDS:
            self._said_still = now
            self._disk.say(
                f"this server stalled for {still:.1f} s and wrote nothing to its disk: it was suspended, "
                f"or its host is overloaded; unsaved changes are {window:.1f} s old"
            )
