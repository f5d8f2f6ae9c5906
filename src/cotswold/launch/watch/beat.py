"""Beats that ranks publish once a second, and decisions that follow from the beats of all ranks.

Knows: beats as values, which rank waits for which. Does not know: stores, threads, clocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum

from cotswold.host.process_info import ResourceUsage

_CORE_SHARE = 0.01
_GAP_SECONDS = 3.0


class State(StrEnum):
    """Progress of a rank towards its end."""

    RUNNING = "here"
    DONE = "done"
    """The rank has finished its work."""
    LEFT = "gone"
    """The rank no longer needs the store."""


@dataclass(frozen=True)
class Beat:
    """The ``count``-th beat of a rank.

    ``exchanges`` is the number of the membership's exchanges that the rank has entered; ``waiting`` is true
    while it is inside the last of them. The rank's main thread has been idle for ``idle_seconds``.
    """

    count: int
    state: State = State.RUNNING
    exchanges: int = 0
    waiting: bool = False
    idle_seconds: float = 0.0

    def dumps(self) -> str:
        """Serialise for the store."""
        return json.dumps(astuple(self))

    @classmethod
    def loads(cls, text: str) -> Beat:
        """Parse the store's text."""
        count, state, *rest = json.loads(text)
        return cls(count, State(state), *rest)


def newer_beat(known: Beat | None, said: str | None) -> Beat | None:
    """Return the later of a rank's known beat and the beat in the store.

    An old beat that was written again is no sign of life, and a deleted beat is no death.
    """
    if said is None:
        return known
    beat = Beat.loads(said)
    return known if known is not None and known.count >= beat.count else beat


def find_stalled_rank(beats: Mapping[int, Beat], limit_seconds: float) -> int | None:
    """Return the live rank that has been idle for longer than the limit while another waits for it, or None.

    Ranks wait for a rank if one of them is in an exchange that the rank has not entered, or has finished. A
    rank that waits outside of the membership's exchanges is idle, too, but not for as long.
    """
    if any(beat.state is State.DONE for beat in beats.values()):
        reached = math.inf
    else:
        reached = max((beat.exchanges for beat in beats.values() if beat.waiting), default=0)
    idle = {
        rank: beat.idle_seconds
        for rank, beat in beats.items()
        if beat.state is State.RUNNING and not beat.waiting and beat.exchanges < reached
    }
    longest = max(idle, key=lambda rank: idle[rank], default=None)
    return longest if longest is not None and idle[longest] > limit_seconds else None


@dataclass(frozen=True)
class IdleTracker:
    """Tracks how long a rank has been idle: ``idle_seconds`` at the last reading of its resource usage."""

    usage: ResourceUsage
    at_seconds: float
    idle_seconds: float = 0.0

    def advance(self, usage: ResourceUsage, at_seconds: float) -> IdleTracker:
        """Return the state after the next reading.

        A process that only polls uses under 1 % of a core and counts as idle. One that computes or does I/O
        uses more. Time in which the process was stopped counts only up to a few seconds.
        """
        elapsed = min(at_seconds - self.at_seconds, _GAP_SECONDS)
        worked = (
            usage.blocks > self.usage.blocks
            or usage.core_seconds - self.usage.core_seconds > _CORE_SHARE * elapsed
        )
        return IdleTracker(usage, at_seconds, 0.0 if worked else self.idle_seconds + elapsed)
