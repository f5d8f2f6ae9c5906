"""Settings of a cluster: the number of processes, the way of sums, the end of an evaluation.

Knows: the settings and their limits. Does not know: recipes, processes, networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cotswold.errors import UserError
from cotswold.replication.controller.settings import MOST_COPIES
from cotswold.replication.replica.settings import Copying, Way

_SILENCES = 3
Travel = Literal["bunyip", "sandblaster"]


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of a cluster; raises UserError for invalid values."""

    workers: int = 2
    """Number of workers to start, and to restart if they exit; others may join (`cotswold worker`)."""
    servers: int = 1
    """Number of parameter servers; it does not change the bits of a result."""
    server_copies: int = 1
    """Replication factor: servers that hold each bucket of replicas' parameters. With 2 or more the run
    survives the loss of a server."""
    server_copies_min: int = 1
    """Fewest members with which a bucket accepts pushes; with fewer, pushes wait."""
    replication: Way = "star"
    """Topology by which changes travel to the members of a bucket: star or chain."""
    disks: str | None = None
    """Folder in which each server keeps its state of a short while ago, from which a bucket is restored if
    all members are lost; None for no disks."""
    flush_seconds: float = 1.0
    """Seconds until a change is on disk, if the disk is fast enough."""
    standing: tuple[str, ...] = ()
    """Addresses (HOST:PORT) of the controllers of a standalone cluster. If given, only `buckets` is used
    of the settings about servers."""
    note: str | None = None
    """File in which a run notes its name on a standalone cluster. With it, the run deletes what an
    earlier, killed process of the run left there."""
    buckets: int | None = None
    """Buckets of parameters that are replicated separately, at most; None for 8 per server."""
    travel: Travel = "sandblaster"
    """`bunyip`: workers keep the point and the direction, step lengths travel, sums are reduced over the
    workers. `sandblaster`: workers pull the point when an evaluation starts, and push their sums."""
    portion: int = 320
    """Patterns per portion (Bunyip: 320)."""
    fraction: float = 1.0
    """Fraction of the patterns that must be done before an evaluation may end (Bunyip: 0.8)."""
    deterministic: bool = False
    """Sum along a fixed tree over portions: the same bits, independent of the workers."""
    seed: int = 0
    """Seed that distributes patterns to portions."""
    deadline: float | None = None
    """An evaluation that draws its own set ends after this multiple of its usual seconds."""
    copies: int = 2
    """Workers that may compute one of the last portions; 1 for no backup tasks."""
    threads: int = 1
    """Threads of a worker."""
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
    def keeps_copies(self) -> bool:
        """True if the parameters of replicas are in buckets, each replicated on servers or disks."""
        return self.server_copies > 1 or self.disks is not None or bool(self.standing)

    @property
    def members(self) -> int:
        """Number of processes that communicate with the coordinator, without an evaluator. At most as many
        communicate with a server; for a standalone cluster the number of servers is unknown."""
        servers = 0 if self.standing else self.servers
        return self.workers + servers + (self.keeps_copies and not self.standing)

    @property
    def copying(self) -> Copying:
        """Settings of the replication between servers."""
        return Copying(least=self.server_copies_min, way=self.replication)

    @property
    def lost_seconds(self) -> float:
        """Seconds without acknowledged traffic until a connection counts as lost."""
        return _SILENCES * self.silent_seconds

    def __post_init__(self) -> None:
        for name in (
            "workers",
            "servers",
            "server_copies",
            "server_copies_min",
            "portion",
            "copies",
            "threads",
            "ranks",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.buckets is not None and self.buckets < 1:
            raise UserError(f"buckets = {self.buckets}: must be at least 1")
        if self.link_bits_per_second < 1:
            raise UserError(f"link_bits_per_second = {self.link_bits_per_second}: must be more than 0")
        if self.server_copies > min(self.servers, MOST_COPIES):
            raise UserError(
                f"server_copies = {self.server_copies}, servers = {self.servers}: at most {MOST_COPIES} "
                "copies, each on another server; give more servers, or fewer copies"
            )
        if self.server_copies_min > self.server_copies:
            raise UserError(
                f"server_copies_min = {self.server_copies_min}, server_copies = {self.server_copies}: pushes "
                "would wait forever; give more copies, or a smaller server_copies_min"
            )
        if self.ports is not None and not 0 < self.ports[0] <= self.ports[1] < 1 << 16:
            raise UserError(f"ports {self.ports[0]} to {self.ports[1]}: must be between 1 and 65535")
        if not 0 < self.fraction <= 1:
            raise UserError(f"fraction = {self.fraction} of the patterns: must be above 0 and at most 1")
        if self.deadline is not None and not self.deadline > 0:
            raise UserError(f"deadline = {self.deadline} times the usual: must be more than 0")
        if self.shard_bytes < 64:
            raise UserError(f"shard_bytes = {self.shard_bytes}: must be at least 64 (default: 1 MiB)")
        for name in ("silent_seconds", "alone_seconds", "start_seconds", "flush_seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} = {getattr(self, name)}: must be more than 0")
