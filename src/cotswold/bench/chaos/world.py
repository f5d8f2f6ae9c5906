"""What a seeded life is made of: who is there, and what goes wrong how often.

Knows: numbers and rates. Does not know: what is done by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotswold.server.copies.copying import Way
from cotswold.simulate.network import Faults

SHARD = 2
"""Numbers a shard."""
SAMPLES = 24
"""Of an epoch."""


@dataclass(frozen=True)
class World:
    """What a life is made of."""

    servers: int = 5
    controllers: int = 3
    buckets: int = 3
    shards: int = 2
    """Of a bucket."""
    copies: int = 3
    least: int = 1
    way: Way = "star"
    replicas: int = 2
    epochs: int = 6
    faults: Faults = field(default_factory=Faults)
    kills: float = 0.0
    """Servers killed a second, all together; likewise the next."""
    pauses: float = 0.0
    cuts: float = 0.0
    """Links cut, one way or both, or a server from all."""
    controller_faults: float = 0.0
    replica_faults: float = 0.0
    checkpoints: float = 0.0
    state_lost: float = 0.0
    """The share of requests to the state of which nobody hears the outcome."""
    disks: bool = False
    """Whether each server has a disk, which the one that comes after it finds."""
    outages: float = 0.0
    """Deaths of all servers at once; likewise disks that are full for a while, or slow, and, a death, the
    chance that some of what a disk has is damaged."""
    full: float = 0.0
    slow: float = 0.0
    damage: float = 0.0
    drift: float = 0.01
    """By which share clocks run faster or slower, at most."""
