"""States of the dispatcher, assignments of a session, and the event for samples that a server has lost.

Knows: allowed transitions, positions, the number of samples per epoch. Does not know: the ledger, servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cotswold.shards.core.events import Event
from cotswold.wire import Ranges
from cotswold.wire.ranges import size

_NAMED_MOST = 6
"""Maximum ranges in the sentence; the event has all."""


class DispatcherState(Enum):
    """Progress of the training."""

    WARMING = "warming"
    RUNNING = "running"
    DRAINING = "ending"
    FINISHED = "over"


NEXT = {
    DispatcherState.WARMING: {DispatcherState.RUNNING, DispatcherState.DRAINING},
    DispatcherState.RUNNING: {DispatcherState.DRAINING},
    DispatcherState.DRAINING: {DispatcherState.FINISHED, DispatcherState.RUNNING},
    DispatcherState.FINISHED: set[DispatcherState](),
}
"""Allowed transitions between states."""


@dataclass
class Assignments:
    """Assignments of a session."""

    newest: int = 0
    unacknowledged: list[tuple[int, int, int]] = field(default_factory=list)
    """(number, start, stop) of assignments that the replica has not acknowledged."""
    exclusive: set[int] = field(default_factory=set)
    """Numbers of assignments that must be pushed alone."""
    needs_samples: bool = False
    """True if the replica asked for more samples and none were available."""


def lost_samples_event(lost: Ranges, samples: int, of: str) -> Event:
    """Return the event for lost positions, which are free again. ``samples``: per epoch; ``of``: their kind,
    as text.

    >>> lost_samples_event(((3, 7), (12, 13)), samples=10, of="that counted").sentence
    '5 samples that counted were lost by a server and are handed out again: epoch 1: 3 to 6; epoch 2: 2'
    """
    if not lost:
        return Event("samples_lost", "", f"no samples {of} are lost")
    named = "; ".join(_named(lost, samples))
    sentence = f"{size(lost):,} samples {of} were lost by a server and are handed out again: {named}"
    return Event("samples_lost", "", sentence, places=lost)


def _named(lost: Ranges, samples: int) -> list[str]:
    whole = [
        (epoch, max(0, start - epoch * samples), min(samples, stop - epoch * samples) - 1)
        for start, stop in lost
        for epoch in range(start // samples, (stop - 1) // samples + 1)
    ]
    found = [
        f"epoch {epoch + 1}: {first}{f' to {last}' if last > first else ''}"
        for epoch, first, last in whole[:_NAMED_MOST]
    ]
    more = len(whole) - _NAMED_MOST
    return [*found, f"and {more} more ranges"] if more > 0 else found
