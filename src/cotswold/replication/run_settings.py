"""Settings of a cluster whose replicas push to parameter servers, which may be replicated.

Knows: the settings and their limits. Does not know: recipes, processes, networks.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.errors import UserError
from cotswold.processes.cluster_settings import ClusterSettings, require_at_least_1, require_more_than_0
from cotswold.replication.controller.settings import MAX_COPIES
from cotswold.replication.replica.settings import ReplicationSettings, Topology


@dataclass(frozen=True)
class ReplicatedClusterSettings(ClusterSettings):
    """Settings of a cluster of replicas and parameter servers; raises UserError for invalid values."""

    replication_factor: int = 1
    """Replication factor: servers that hold each bucket of replicas' parameters. With 2 or more the run
    survives the loss of a server."""
    replication_factor_min: int = 1
    """Fewest members with which a bucket accepts pushes; with fewer, pushes wait."""
    topology: Topology = "star"
    """Topology by which changes travel to the members of a bucket: star or chain."""
    disks: str | None = None
    """Folder in which each server keeps its state of a short while ago, from which a bucket is restored if
    all members are lost; None for no disks."""
    flush_seconds: float = 1.0
    """Seconds until a change is on disk, if the disk is fast enough."""
    standing: tuple[str, ...] = ()
    """Addresses (HOST:PORT) of the controllers of a standalone cluster. If given, only `max_buckets` is used
    of the settings about servers."""
    note: str | None = None
    """File in which a run notes its name on a standalone cluster. With it, the run deletes what an
    earlier, killed process of the run left there."""
    max_buckets: int | None = None
    """Buckets of parameters that are replicated separately, at most; None for 8 per server."""

    @property
    def keeps_copies(self) -> bool:
        """True if the parameters of replicas are in buckets, each replicated on servers or disks."""
        return self.replication_factor > 1 or self.disks is not None or bool(self.standing)

    @property
    def copying(self) -> ReplicationSettings:
        """Settings of the replication between servers."""
        return ReplicationSettings(min_members=self.replication_factor_min, topology=self.topology)

    @property
    def members(self) -> int:
        """Number of processes that communicate with the coordinator, without an evaluator.

        At most as many communicate with a server. For a standalone cluster the number of servers is unknown.
        """
        servers = 0 if self.standing else self.servers
        return self.workers + servers + (self.keeps_copies and not self.standing)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least_1(self, "replication_factor", "replication_factor_min")
        if self.max_buckets is not None:
            require_at_least_1(self, "max_buckets")
        if self.replication_factor > min(self.servers, MAX_COPIES):
            raise UserError(
                f"replication_factor = {self.replication_factor}, servers = {self.servers}: at most "
                f"{MAX_COPIES} copies, each on another server; give more servers, or fewer copies"
            )
        if self.replication_factor_min > self.replication_factor:
            raise UserError(
                f"replication_factor_min = {self.replication_factor_min}, replication_factor = "
                f"{self.replication_factor}: pushes would wait forever; give more copies, or a smaller "
                "replication_factor_min"
            )
        require_more_than_0(self, "flush_seconds")
