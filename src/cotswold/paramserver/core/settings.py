"""Settings of the asynchronous half of a server: its vector, update rule, queue limits and staleness bound.

Knows: rules, schedules, staleness bounds. Does not know: sessions, queues, the code that applies updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Rule
from cotswold.paramserver.core.staleness import Staleness


@dataclass(frozen=True)
class Room:
    """Queue limits in bytes; an update that finds the queue empty is accepted at any size."""

    shard_bytes: int
    """Limit for one shard."""
    all_bytes: int
    """Limit for all shards of a server."""


@dataclass(frozen=True)
class Asynchronous:
    """Settings of a run's shards."""

    run: str
    name: str
    """Name of the vector that updates change."""
    rule: Rule
    columns: Mapping[str, int]
    """Numbers per row of each tensor."""
    item_bytes: int
    room: Room
    staleness: Staleness = field(default_factory=Staleness)
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters have norm 1: rows of matrices."""
    schedule: SampleSchedule = field(default_factory=SampleSchedule)
    """Computes an update's rate from that of its version and the position of its first sample."""
    products: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For tensors that are not matrices: the description of the product that turns factors into gradients."""
    deals: bool = False
    """True if the coordinator assigns the samples. Then a position names one sample in all sessions, and each
    shard applies it once. Otherwise each session numbers its own samples."""
