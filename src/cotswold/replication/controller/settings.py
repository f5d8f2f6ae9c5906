"""Settings of controllers: replication factors, limits and times.

Knows: numbers. Does not know: their use.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.words import counted

MAX_COPIES = 5


@dataclass(frozen=True)
class ControllerSettings:
    """Settings of a controller."""

    copies: int = 3
    """Replicas per bucket, the primary included; fewer while there are fewer servers."""
    lease_seconds: float = 1.0
    beat_seconds: float = 0.25
    """Interval between a leader's heartbeats in the metadata store."""
    leader_seconds: float = 1.0
    """Seconds without a leader's heartbeat after which another controller may lead."""
    retry_seconds: float = 0.25
    fence_seconds: float = 0.06
    """Retry interval of fence requests: a lost message must not cost a replica."""
    election_seconds: float = 0.2
    """Seconds after which an election proceeds without silent members."""
    failure_report_seconds: float = 0.2
    """Seconds for which failure reports are collected before the failure detector decides."""
    stall_seconds: float = 0.25
    """Seconds without a tick after which a leader assumes that it stalled and suspects no server for it."""
    placement_cooldown_seconds: float = 10.0
    """Seconds for which a server receives no replica of a bucket after its primary could not reach it."""
    retry_placement_seconds: float = 1.0
    """The same if no other server is free and the bucket has too few members, or only one."""
    disk_seconds: float = 3.0
    """Seconds after which a bucket whose members have all exited is recovered without the missing disks,
    if an available disk was written in the newest term."""
    revive_seconds: float = 30.0
    """The same if no available disk was written in the newest term."""
    recover_seconds: float = 60.0
    """The same if the metadata was rebuilt from disks: these name others that may have newer data."""
    min_copies: int = 1
    """Minimum number of members for updates to commit; also sent to servers. Drained servers leave at once
    if this many stay."""
    max_concurrent_moves: int = 4
    """Maximum number of concurrent moves to servers with fewer replicas; four times as many from a drained
    server."""
    handover_seconds: float = 0.5
    """Minimum interval between two handovers that balance primaries."""
    settle_seconds: float = 1.0
    """Seconds after a server joined or left before a replica moves."""
    rebalance_quiet_seconds: float = 5.0
    """Seconds after such a change and after the last move before a primary moves."""
    forget_seconds: float = 600.0
    """Seconds after which a silent server without replicas is forgotten."""

    def __post_init__(self) -> None:
        if not 1 <= self.copies <= MAX_COPIES:
            raise ValueError(f"copies must be 1 to {MAX_COPIES}, got {self.copies}")
        if not 1 <= self.min_copies <= self.copies:
            raise ValueError(
                f"the minimum must be 1 to {counted(self.copies, 'copy')}, got {self.min_copies}"
            )
