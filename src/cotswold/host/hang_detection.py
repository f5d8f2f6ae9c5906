"""Detect a step that makes no progress because its processes are stopped or all wait, by periodic checks.

Knows: observations of each process with their times; how long steps take. Does not know: /proc, clocks, what
a step is (one of a replica, a portion of a batch, an evaluation).

    observation                                 state of the process
    T                                           stopped by a signal, until another resumes it
    R, D                                        computes, or waits for a disk
    t                                           stopped in a debugger, and left undisturbed
    any other, and it has used the processor    computes
    any other, and it has woken up              reads, perhaps over a network
    any other                                   waits, perhaps for another process

A step is stalled if a process has been stopped for the bound. It is also stalled if all processes have waited
for three times the bound, and for three times as long as the longest step so far: a long step computes, reads
or is known to be long. The first step, without any reference, gets four times as long. A single longer wait
for something external cannot be distinguished from a stall. Time in which the checking process was itself
stopped does not count, for no process and no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_WAIT_FACTOR = 3
"""Bounds, and longest steps, for which all processes may wait."""
_FIRST_STEP_FACTOR = 4
"""Factor on the allowed wait in the first step."""
_BUSY_SHARE = 0.02
"""Fraction of a core below which a process only polls (a heartbeat: about 0.005)."""
_TICKS_SECONDS = 0.02
"""Resolution of process times in seconds: the system counts hundredths."""
_WAKES, _WAKES_PER_SECOND = 2, 0.05
"""Wake-ups, and wake-ups per second, up to which a process counts as idle."""


@dataclass(frozen=True)
class ProcessActivity:
    """The system's observation of a process."""

    state: str
    """Letter of its state."""
    core_seconds: float
    """Seconds of processor time used so far."""
    wakes: int
    """Number of times that its computing thread has waited and woken up so far."""


@dataclass(frozen=True)
class Hang:
    """A step that makes no progress."""

    processes: tuple[int, ...]
    """Numbers of the stopped processes, or of all."""
    is_stopped: bool
    """True if a signal has stopped them."""
    seconds: float
    """Seconds for which they have been idle."""


class HangDetector:
    """Checks steps, of which one is computed at a time."""

    def __init__(self, silent_seconds: float) -> None:
        """Use the bound ``silent_seconds``."""
        self._bound = silent_seconds
        self._now: float | None = None
        self._awake = 0.0
        """Seconds covered by checks."""
        self._step: float | None = None
        self._began = 0.0
        self._ended = 0
        self._longest = 0.0
        """Duration of the longest step, in seconds covered by checks, with a resolution of one pause."""
        self._stopped: dict[int, float] = {}
        """Times since which processes are stopped."""
        self._marks: dict[int, tuple[float, ProcessActivity]] = {}
        """Time of each process's last activity, and its observation then."""

    @property
    def pause_seconds(self) -> float:
        """Seconds between checks."""
        return min(1.0, self._bound / 8)

    def check(
        self,
        step: float | None,
        ended: int,
        observe: Callable[[], Mapping[int, ProcessActivity]],
        now: float,
    ) -> Hang | None:
        """Check the current step and return a stall, if there is one.

        ``step`` identifies the step, None between steps. ``ended`` counts the steps whose duration is
        representative. ``observe`` observes all processes; it is called if a step takes longer than a pause.
        """
        self._awake += 0.0 if self._now is None else min(now - self._now, 2 * self.pause_seconds)
        self._now = now
        if step != self._step:
            if self._step is not None and ended > self._ended:
                self._longest = max(self._longest, self._awake - self._began)
            self._step, self._began = step, self._awake
            self._stopped, self._marks = {}, {}
        self._ended = ended
        if step is None or self._awake - self._began < self.pause_seconds:
            return None
        seen = observe()
        self._record_activity(seen)
        return self._find_stopped() or self._find_waiting(seen)

    def _record_activity(self, seen: Mapping[int, ProcessActivity]) -> None:
        for gone in [each for each in self._marks if each not in seen]:
            del self._marks[gone]
        self._stopped = {
            each: self._stopped.get(each, self._awake) for each, what in seen.items() if what.state == "T"
        }
        for each, what in seen.items():
            since, before = self._marks.get(each, (self._awake, what))
            is_busy = _is_busy(before, what, self._awake - since)
            self._marks[each] = (self._awake, what) if is_busy else (since, before)

    def _find_stopped(self) -> Hang | None:
        """Report processes that have been stopped for too long."""
        since = {each: when for each, when in self._stopped.items() if self._awake - when >= self._bound}
        if not since:
            return None
        return Hang(tuple(sorted(since)), True, self._awake - min(since.values()))

    def _find_waiting(self, seen: Mapping[int, ProcessActivity]) -> Hang | None:
        """Report a step in which all processes have waited for too long."""
        is_first = self._ended == 0
        most = (
            _FIRST_STEP_FACTOR * _WAIT_FACTOR * self._bound
            if is_first
            else _WAIT_FACTOR * max(self._bound, self._longest)
        )
        waited = min((self._awake - since for since, _ in self._marks.values()), default=0.0)
        return Hang(tuple(sorted(seen)), False, waited) if waited >= most else None


def _is_busy(before: ProcessActivity, now: ProcessActivity, seconds: float) -> bool:
    """True if a process has been active in the last ``seconds``."""
    has_computed = now.core_seconds - before.core_seconds > _TICKS_SECONDS + _BUSY_SHARE * seconds
    has_read = now.wakes - before.wakes > _WAKES + _WAKES_PER_SECOND * seconds
    return now.state in ("R", "D", "t") or has_computed or has_read
