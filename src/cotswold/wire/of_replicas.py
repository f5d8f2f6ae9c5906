"""Messages between a replica and the coordinator.

Knows: the fields. Does not know: what a replica computes.

A replica joins by `Join` and may `Leave`. `SessionExpired` and `Shutdown` end its session, as they end a
worker's.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.types import Shard


@dataclass(frozen=True)
class Admitted:
    """A replica's session begins; every server knows the session."""

    name: str
    attempt: int
    session: int
    run: str
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """(name, address) of each server."""
    beat_seconds: float
    retry_seconds: float
    settings: str
    """Settings of the replica's process, as JSON."""


@dataclass(frozen=True)
class Alive:
    """Heartbeat of a replica, with the work that it still has; answered by `ReplicaInstructions`."""

    session: int
    hand: int
    """Number of the newest assignment that the replica has received."""
    left: int
    """Samples of its assignments that no step has processed yet."""


@dataclass(frozen=True)
class Directions:
    """Instructions for a replica, valid until the next ones."""

    session: int
    hands: tuple[tuple[int, int, int], ...]
    """(number, start, stop): assigned samples, for each assignment newer than the one that the heartbeat
    named."""
    rate: int
    """Version of the learning rate."""
    rate_value: float
    checkpoint: int
    """Number of the newest checkpoint that was started: its marker is due."""
    alone: tuple[int, ...] = ()
    """Numbers of assignments that some servers have applied. A push holds samples of one of these
    assignments, or of none."""
