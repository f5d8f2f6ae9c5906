"""What the asynchronous half of a server is told once: its vector, rule, room and bound of staleness.

Knows: rules, schedules, what a bound of staleness is. Does not know: sessions, queues, who applies updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Rule
from cotswold.paramserver.core.staleness import Staleness


@dataclass(frozen=True)
class Room:
    """How many bytes of updates may wait; one that finds nothing waiting is taken, whatever its size."""

    shard_bytes: int
    """For one shard."""
    all_bytes: int
    """For all of a server."""


@dataclass(frozen=True)
class Asynchronous:
    """What the shards of a run are told once."""

    run: str
    name: str
    """The vector that updates change."""
    rule: Rule
    columns: Mapping[str, int]
    """Of each tensor: numbers a row."""
    item_bytes: int
    room: Room
    staleness: Staleness = field(default_factory=Staleness)
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters have norm 1: rows of matrices."""
    schedule: SampleSchedule = field(default_factory=SampleSchedule)
    """How the rate of an update follows from its version's and from the place of its first sample."""
    products: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What makes gradients of factors for tensors that are no matrices, in numbers."""
    deals: bool = False
    """Whether the coordinator deals the samples. A place then names one sample in all sessions, and each
    shard applies it once. Otherwise each session numbers the samples that it brings by itself."""
