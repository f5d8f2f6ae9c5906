"""Between a replica and the coordinator.

Knows: the fields. Does not know: what a replica computes.

A replica joins by `Join`, and may `Leave`; `Rejoin` and `Dismiss` end its session, as they do a worker's.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.types import Shard


@dataclass(frozen=True)
class Admitted:
    """A replica's session begins; every server knows of it."""

    name: str
    attempt: int
    session: int
    run: str
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """Names and addresses."""
    beat_seconds: float
    retry_seconds: float
    settings: str
    """JSON for whoever runs the replica."""


@dataclass(frozen=True)
class Alive:
    """A replica lives, and has so much in hand; answered by `Directions`."""

    session: int
    hand: int
    """The newest of the hands that it has got."""
    left: int
    """Samples of these that no step has taken yet."""


@dataclass(frozen=True)
class Directions:
    """What a replica is to do from here on."""

    session: int
    hands: tuple[tuple[int, int, int], ...]
    """(number, start, stop): samples to compute, newer than the hand that it has named."""
    rate: int
    """The version of the learning rate."""
    rate_value: float
    checkpoint: int
    """The newest that was begun: its marker is due."""
    alone: tuple[int, ...] = ()
    """The numbers of hands that some servers have applied. A push has samples of one of these hands, or of
    none."""
