"""What a rank says of itself once a second, and what follows from what all say.

Knows: beats as values, who waits for whom. Does not know: stores, threads, clocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum

from cotswold.host.process_info import Usage

_CORE_SHARE = 0.01
_GAP_SECONDS = 3.0


class State(StrEnum):
    """How far a rank is."""

    HERE = "here"
    DONE = "done"
    """It has finished its work."""
    GONE = "gone"
    """It needs the store no more."""


@dataclass(frozen=True)
class Beat:
    """The ``count``-th beat of a rank.

    ``exchanges`` of the membership have been entered, and ``waiting`` tells whether it is in the last of
    them. Its main thread has done nothing for ``idle_seconds``.
    """

    count: int
    state: State = State.HERE
    exchanges: int = 0
    waiting: bool = False
    idle_seconds: float = 0.0

    def dumps(self) -> str:
        """As text for the store."""
        return json.dumps(astuple(self))

    @classmethod
    def loads(cls, text: str) -> Beat:
        """From the store's text."""
        count, state, *rest = json.loads(text)
        return cls(count, State(state), *rest)


def newest(known: Beat | None, said: str | None) -> Beat | None:
    """The later of what is known of a rank and what its name in the store says now.

    An old beat that somebody wrote there again is no life, and a beat that was wiped out no death.
    """
    if said is None:
        return known
    beat = Beat.loads(said)
    return known if known is not None and known.count >= beat.count else beat


def stalled(beats: Mapping[int, Beat], limit_seconds: float) -> int | None:
    """The rank that lives, but has done nothing for so long while another waits for it; None if there is
    none.

    A rank keeps others waiting if one of them is in an exchange that it has not entered, or has finished. Who
    waits for it outside of the membership's exchanges does nothing either, but not for as long.
    """
    if any(beat.state is State.DONE for beat in beats.values()):
        reached = math.inf
    else:
        reached = max((beat.exchanges for beat in beats.values() if beat.waiting), default=0)
    idle = {
        rank: beat.idle_seconds
        for rank, beat in beats.items()
        if beat.state is State.HERE and not beat.waiting and beat.exchanges < reached
    }
    longest = max(idle, key=lambda rank: idle[rank], default=None)
    return longest if longest is not None and idle[longest] > limit_seconds else None


@dataclass(frozen=True)
class Rest:
    """How long a rank has done nothing: ``idle_seconds`` at the time of the last reading of its usage."""

    usage: Usage
    at_seconds: float
    idle_seconds: float = 0.0

    def after(self, usage: Usage, at_seconds: float) -> Rest:
        """The same, one reading later.

        What wakes up now and then to see whether it may go on uses less than a hundredth of a core, and does
        nothing; what computes, reads or writes does more, if slowly. A process that was stopped could do
        nothing.
        """
        elapsed = min(at_seconds - self.at_seconds, _GAP_SECONDS)
        worked = (
            usage.blocks > self.usage.blocks
            or usage.core_seconds - self.usage.core_seconds > _CORE_SHARE * elapsed
        )
        return Rest(usage, at_seconds, 0.0 if worked else self.idle_seconds + elapsed)
