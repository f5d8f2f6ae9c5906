"""Settings of replication.

Knows: the number of members for a commit, the topology, times. Does not know: groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Topology = Literal["star", "chain"]


@dataclass(frozen=True)
class ReplicationSettings:
    """Settings of replication."""

    min_members: int = 1
    """With fewer members, the primary included, updates wait."""
    topology: Topology = "star"
    """`star`: the primary sends changes to each follower. `chain`: it sends them to the first secondary,
    which forwards them to the next, and so on; each follower reports its index to the primary."""
    window: int = 4
    """Number of uncommitted indexes from which on updates wait and are then applied together."""
    beat_seconds: float = 0.1
    """Interval of the primary's heartbeats to followers that are up to date."""
    retry_seconds: float = 0.5
    """Initial timeout of a reply; replies usually take less than half of it."""
    silent_seconds: float = 0.5
    """Seconds of silence after which a member, or the primary, is reported to the controllers."""
    chain_bypass_seconds: float = 5.0
    """Seconds for which the primary itself sends to a secondary that a chain reached too late."""
    saves: bool = False
    """True if there is a disk."""
