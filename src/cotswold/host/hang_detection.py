"""Whether a step stands still: the process that computes it, or all that compute it together, as one of them
judges that looks now and then.

Knows: what was seen of each, and when; how long steps take. Does not know: /proc, clocks, what a step is (one
of a replica, a portion of a batch, a judgement).

    seen of a process                          it
    T                                          is stopped by a signal, until another lets it go on
    R, D                                       computes, or waits for a disk
    t                                          is looked at by somebody with a debugger, who is not disturbed
    any other, and it has used the processor   computes
    any other, and it has woken up             reads, over a network it may be
    any other                                  waits, for another process it may be

A step stands still where a process has been stopped for the bound, or where all of them have waited for three
times that, and for three times as long as any step before has taken: a long step computes, reads or is known
to be long. The first step, which no other says anything of, has four times as long. One wait for something
elsewhere that is longer than that cannot be told from it. Time in which whoever looks stood still itself
counts for nobody, and in no step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_WAITS = 3
"""Bounds, and longest steps, for which all may wait."""
_FIRST = 4
"""So many times as long in the first step."""
_SHARE = 0.02
"""Of a core: who uses less only wakes up now and then (a heartbeat: about 0.005)."""
_TICKS_SECONDS = 0.02
"""The system counts a process's time in hundredths of a second."""
_WAKES, _WAKES_PER_SECOND = 2, 0.05
"""Who wakes up no more often than that does nothing."""


@dataclass(frozen=True)
class Seen:
    """What the system says of a process."""

    state: str
    """The letter of its state."""
    core_seconds: float
    """Of processor time that it has used so far."""
    wakes: int
    """How often its thread that computes has waited for something so far, and has woken up."""


@dataclass(frozen=True)
class Still:
    """A step stands still."""

    processes: tuple[int, ...]
    """Those that are stopped, or all, by their numbers."""
    is_stopped: bool
    """Whether a signal has stopped them."""
    seconds: float
    """For how long they have done nothing."""


class Standstill:
    """Looks at steps, of which one is computed at a time."""

    def __init__(self, silent_seconds: float) -> None:
        """``silent_seconds``: the bound."""
        self._bound = silent_seconds
        self._now: float | None = None
        self._awake = 0.0
        """Seconds in which it was looked."""
        self._step: float | None = None
        self._began = 0.0
        self._ended = 0
        self._longest = 0.0
        """Seconds, of those counted above, that the longest step has taken, to a pause."""
        self._stopped: dict[int, float] = {}
        """Since when processes are stopped."""
        self._marks: dict[int, tuple[float, Seen]] = {}
        """When each was seen to do something last, and what was seen of it then."""

    @property
    def pause_seconds(self) -> float:
        """How often it is to be looked."""
        return min(1.0, self._bound / 8)

    def look(
        self,
        step: float | None,
        ended: int,
        see: Callable[[], Mapping[int, Seen]],
        now: float,
    ) -> Still | None:
        """What has come of it; ``step``: what the step is known by, which no other is; None between steps.

        ``ended``: how many steps have ended that say how long one takes. ``see`` says what is seen of all
        processes; it is asked where a step takes longer than a pause.
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
        seen = see()
        self._mark(seen)
        return self._halted() or self._waiting(seen)

    def _mark(self, seen: Mapping[int, Seen]) -> None:
        for gone in [each for each in self._marks if each not in seen]:
            del self._marks[gone]
        self._stopped = {
            each: self._stopped.get(each, self._awake) for each, what in seen.items() if what.state == "T"
        }
        for each, what in seen.items():
            since, before = self._marks.get(each, (self._awake, what))
            is_busy = _is_busy(before, what, self._awake - since)
            self._marks[each] = (self._awake, what) if is_busy else (since, before)

    def _halted(self) -> Still | None:
        """Where processes have been stopped for too long."""
        since = {each: when for each, when in self._stopped.items() if self._awake - when >= self._bound}
        if not since:
            return None
        return Still(tuple(sorted(since)), True, self._awake - min(since.values()))

    def _waiting(self, seen: Mapping[int, Seen]) -> Still | None:
        """Where all have waited for too long."""
        is_first = self._ended == 0
        most = _FIRST * _WAITS * self._bound if is_first else _WAITS * max(self._bound, self._longest)
        waited = min((self._awake - since for since, _ in self._marks.values()), default=0.0)
        return Still(tuple(sorted(seen)), False, waited) if waited >= most else None


def _is_busy(before: Seen, now: Seen, seconds: float) -> bool:
    """Whether a process has done something in so many seconds."""
    has_computed = now.core_seconds - before.core_seconds > _TICKS_SECONDS + _SHARE * seconds
    has_read = now.wakes - before.wakes > _WAKES + _WAKES_PER_SECOND * seconds
    return now.state in ("R", "D", "t") or has_computed or has_read
