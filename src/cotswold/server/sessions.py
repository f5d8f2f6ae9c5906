"""What a server knows of a replica's session, and of an update of it that waits.

Knows: the fields, who may speak for a replica. Does not know: what becomes of updates (`updating`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from cotswold.server.admission import Factors
from cotswold.server.messages import Applied, PullNewer, Ranges, Update, UpdateRefused
from cotswold.server.parts import Parts
from cotswold.server.ranks import is_of, name_of
from cotswold.server.shard import Values
from cotswold.server.staleness import Histogram


@dataclass
class Session(Generic[Values]):
    """One incarnation of a replica."""

    name: str
    last: int = 0
    answer: Applied | UpdateRefused | None = None
    """To the last; None before the first, and while that waits."""
    samples: Ranges = ()
    """Applied here, and not settled."""
    missed: Ranges = ()
    """Of updates that were refused for ever, and not settled."""

    pulled_for: int = 0
    """The number of the update that is computed from its newest pull."""
    bases: dict[int, int] = field(default_factory=dict)
    """The least versions that it has pulled for that."""
    checkpoint: int = 0
    """The newest whose marker is in."""
    staleness: Histogram = field(default_factory=Histogram)
    """Of its updates, each shard's by itself."""
    parts: Parts[Values] = field(default_factory=Parts)
    """Of the update after the last."""


@dataclass(eq=False)
class Waiting(Generic[Values]):
    """An update in the queue, without its buffers."""

    session: int
    update: Update
    rate: float
    values: list[Values | Factors[Values]]
    numbers: dict[int, int]
    """How many are kept meanwhile, by shard."""
    checkpoint: int
    """It is in later ones alone."""
    is_dropped: bool = False


def may_say(message: Update | PullNewer, sender: str, replica: str) -> bool:
    """Whether a replica, or a rank of it, says a message as itself."""
    if isinstance(message, Update):
        return sender == name_of(replica, message.part) and bool(message.parts or not message.part)
    return is_of(sender, replica)


def said_of(sessions: Mapping[int, Session[Values]]) -> tuple[tuple[int, Ranges, Ranges], ...]:
    """What orders are answered with."""
    return tuple((number, session.samples, session.missed) for number, session in sorted(sessions.items()))
