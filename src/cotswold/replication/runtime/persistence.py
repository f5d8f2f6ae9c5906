"""When a server's disk is given what is different in its copies, and how much could be lost meanwhile.

Knows: the machine, the disk, which buckets are due (`copies.spreading`). Does not know: what buckets hold,
how anything is written.

Of ``flush_seconds`` a quarter is left for the disk, or thrice the time of its slowest write of late, up to
about a half; for the rest a change waits in memory, where others fold into it. That is the promise while the
disk is fast enough. When it is not nothing waits for it: changes fold for longer, the *window*, the age of
the oldest change that is not on the disk, grows, and people are told that, and why. Of a process that stood
still, as one that was stopped, that is said, and nothing of its disk, which could not be given anything; of
one that does so again and again, as on a host that has too much to do, how old that is which is not on the
disk.

What is written together costs as much processor time as some MiB of contents, however little it is. So
buckets are given together until there is so much, though only the first of them is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cotswold.replication.replica.flush_schedule import Spreading
from cotswold.replication.replica.server import Keeper
from cotswold.replication.runtime.disk import Disk
from cotswold.shards.runtime.arithmetic import Array, bytes_of
from cotswold.wire.lifecycle import Unsaved
from cotswold.wire.names import run_of

GIVEN_AFTER, GIVEN_AFTER_LEAST = 0.75, 0.45
"""Of ``flush_seconds``: where the disk is fast, and where it is slow."""
_SLOWEST_WRITES = 3.0
"""So many times the slowest write is left for the disk: one that is under way, one that follows, and some."""
_TOGETHER_BYTES = 16 << 20
"""So much is given at once, or all that is different: 0.41 ms of processor time a MiB, where single ones take
2.2, and a copy that takes 1 ms."""
_LATE = 2.0
"""The window is too long with so many ``flush_seconds``."""
_AGAIN_SECONDS = 0.2
"""After which the disk is offered something again that had no room for more."""
_STILL_SECONDS = 1.0
"""A process that was not asked for so long stood still."""
_SAY_SECONDS = 10.0
"""How often it is said that the window is too long, and that a process stood still."""


class Saving:
    """That of one server's process."""

    def __init__(self, machine: Keeper[Array], disk: Disk, flush_seconds: float, now: float) -> None:
        self._machine, self._disk, self._flush_seconds = machine, disk, flush_seconds
        self._spreading = Spreading(GIVEN_AFTER * flush_seconds, now)
        self._offer_at = now
        self._longest = 0.0
        """The longest window so far."""
        self._late: float | None = None
        """The longest window since it was said that it is too long."""
        self._watched = now
        """When it was looked last whether it is."""
        self._stood = float("-inf")
        """Until when this process stood still."""
        self._is_again = False
        """Whether it had done so shortly before."""
        self._said_late = self._said_still = float("-inf")

    def tick(self, now: float) -> None:
        """Time has passed; to be called many times in ``flush_seconds``."""
        self._disk.belong(self._machine.cluster, now)
        self._forget()
        for bucket in self._machine.take_recalls():
            self._disk.read(bucket, partial(self._machine.recalled, bucket))
        self._disk.scrub(now)
        self._spreading.note(self._machine.different, now)
        if now >= self._offer_at:
            self._give(now)
        self._watch(now)

    def finish(self, now: float) -> bool:
        """It is over: give the disk all that is different. False where that has no room for it now."""
        self._forget()
        self._spreading.note(self._machine.different, now)
        buckets = self._spreading.all
        return self._offer(buckets, len(buckets))

    def unsaved(self, run: str, now: float) -> Unsaved:
        """How much could be lost at this moment, of a run or of all."""
        copies = self._machine.copies
        of = [copies[name] for name in self._machine.different if run in ("", run_of(name))]
        count = sum(bytes_of(tuple(each.unsaved_buffers)) for each in of)
        dirty = count + self._disk.unsaved_bytes
        return Unsaved(dirty, self._window(now), self._longest, self._flush_seconds)

    def _give(self, now: float) -> None:
        rest = _SLOWEST_WRITES * self._disk.slowest_seconds / self._flush_seconds
        after = max(GIVEN_AFTER_LEAST, min(GIVEN_AFTER, 1.0 - rest))
        self._spreading.seconds = after * self._flush_seconds
        due = self._spreading.due(now)
        if due and not self._offer(self._spreading.all, len(due)):
            self._offer_at = now + _AGAIN_SECONDS

    def _offer(self, buckets: Sequence[str], least: int) -> bool:
        """Give the first of these, ``least`` or more; False where there is no room for one."""
        given = 0
        with self._disk.together():
            for place, bucket in enumerate(buckets):
                if place >= least and given >= _TOGETHER_BYTES:
                    break
                number, saved = self._machine.save(bucket)
                if not self._disk.write(number, saved, self._spreading.since(bucket)):
                    self._machine.unsaved(number)
                    return False
                self._spreading.given(bucket)
                given += bytes_of(tuple(saved.numbers.values()))
        return True

    def _forget(self) -> None:
        for bucket in self._machine.take_forgotten():
            self._disk.forget(bucket)

    def _window(self, now: float) -> float:
        return max(self._spreading.window_seconds(now), self._disk.window_seconds)

    def _watch(self, now: float) -> None:
        """Say where the window is too long, and when it is no more."""
        window = self._window(now)
        self._longest = max(self._longest, window)
        self._watch_itself(window, now)
        has_had_time = now - self._stood >= _LATE * self._flush_seconds  # the disk
        if not (has_had_time or self._is_again) and self._late is None:
            return
        if window > _LATE * self._flush_seconds:
            if now - self._said_late >= _SAY_SECONDS:
                self._said_late, self._late = now, self._late or window
                why = self._disk.pace if has_had_time else "this server stood still"
                self._disk.say(
                    f"what is not on its disk is {window:.1f} s old, and flush_seconds is "
                    f"{self._flush_seconds:g}: {why}; if all servers die now, that much is lost"
                )
            if self._late is not None:
                self._late = max(self._late, window)
        elif self._late is not None and window <= self._flush_seconds:
            self._disk.say(
                f"what is not on its disk is less than {self._flush_seconds:g} s old again; the oldest "
                f"was {self._late:.1f} s old"
            )
            self._late = None

    def _watch_itself(self, window: float, now: float) -> None:
        """Say where this process stood still."""
        still, self._watched = now - self._watched, now
        late = _LATE * self._flush_seconds
        if still <= max(_STILL_SECONDS, late):
            return
        self._is_again = now - still - self._stood < max(_SAY_SECONDS, late)
        self._stood = now
        if now - self._said_still >= _SAY_SECONDS:
            self._said_still = now
            self._disk.say(
                f"this server stood still for {still:.1f} s, and its disk was given nothing: it was stopped, "
                f"or its host had no time for it; what is not on the disk is {window:.1f} s old"
            )
