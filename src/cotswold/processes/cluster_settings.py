"""Settings of a cluster: the number of processes, the way of sums, the end of an evaluation.

Knows: the settings and their limits. Does not know: recipes, processes, networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cotswold.errors import UserError

_SILENCES = 3
PointTransfer = Literal["bunyip", "sandblaster"]


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster; raises UserError for invalid values."""

    workers: int = 2
    """Number of workers to start, and to restart if they exit; others may join (`cotswold worker`)."""
    servers: int = 1
    """Number of parameter servers; it does not change the bits of a result."""
    point_transfer: PointTransfer = "sandblaster"
    """`bunyip`: workers keep the point and the direction, step lengths travel, sums are reduced over the
    workers. `sandblaster`: workers pull the point when an evaluation starts, and push their sums."""
    portion_size: int = 320
    """Samples per portion (Bunyip: 320)."""
    sample_fraction: float = 1.0
    """Fraction of the samples that must be done before an evaluation may end (Bunyip: 0.8)."""
    deterministic: bool = False
    """Sum along a fixed tree over portions: the same bits, independent of the workers."""
    seed: int = 0
    """Seed that distributes samples to portions."""
    deadline_factor: float | None = None
    """An evaluation that draws its own set ends after this multiple of its usual seconds."""
    backup_tasks: int = 1
    """Further workers that may compute one of the last portions; 0 for no backup tasks."""
    threads: int = 1
    """Threads of a worker."""
    device: str = "cpu"
    """Device of the workers, as for `processes.device.select_device`."""
    ranks: int = 1
    """Processes per worker, the leading one included; cores are shared out accordingly."""
    encrypt: bool = True
    """Encrypt traffic between hosts (CURVE, at about a fifth of the speed)."""
    shard_bytes: int = 1 << 20
    """Bytes of a shard, rounded to whole elements."""
    ports: tuple[int, int] | None = None
    """First and last port at which processes listen for other hosts; None for any."""
    spread_servers: bool = False
    """Spread parameter servers over all machines by cores; otherwise start them on the coordinator's
    machine."""
    link_bits_per_second: int = 1_000_000_000
    """Network bandwidth of each machine in bits per second; plans of reductions depend on it."""
    restarts: bool = True
    """Restart workers that exit."""
    silent_seconds: float = 10.0
    """Seconds until a silent worker loses its portions."""
    alone_seconds: float = 300.0
    """Seconds without any worker after which the cluster gives up."""
    start_seconds: float = 120.0
    """Seconds that processes may take until they say hello."""

    @property
    def members(self) -> int:
        """Number of processes that communicate with the coordinator; a server has no more peers."""
        return self.workers + self.servers

    @property
    def lost_seconds(self) -> float:
        """Seconds without acknowledged traffic until a connection counts as lost."""
        return _SILENCES * self.silent_seconds

    def __post_init__(self) -> None:
        require_at_least_1(self, "workers", "servers", "portion_size", "threads", "ranks")
        if self.backup_tasks < 0:
            raise UserError(f"backup_tasks = {self.backup_tasks}: must be at least 0")
        if self.link_bits_per_second < 1:
            raise UserError(f"link_bits_per_second = {self.link_bits_per_second}: must be more than 0")
        if self.ports is not None and not 0 < self.ports[0] <= self.ports[1] < 1 << 16:
            raise UserError(f"ports {self.ports[0]} to {self.ports[1]}: must be between 1 and 65535")
        if not 0 < self.sample_fraction <= 1:
            raise UserError(
                f"sample_fraction = {self.sample_fraction} of the samples: must be above 0 and at most 1"
            )
        if self.deadline_factor is not None and not self.deadline_factor > 0:
            raise UserError(f"deadline_factor = {self.deadline_factor} times the usual: must be more than 0")
        if self.shard_bytes < 64:
            raise UserError(f"shard_bytes = {self.shard_bytes}: must be at least 64 (default: 1 MiB)")
        require_more_than_0(self, "silent_seconds", "alone_seconds", "start_seconds")


def require_at_least_1(settings: object, *names: str) -> None:
    """Raise UserError for the first of these settings that is below 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise UserError(f"{name} = {getattr(settings, name)}: must be at least 1")


def require_more_than_0(settings: object, *names: str) -> None:
    """Raise UserError for the first of these settings that is not above 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise UserError(f"{name} = {getattr(settings, name)}: must be more than 0")
