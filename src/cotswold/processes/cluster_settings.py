"""What a cluster is asked to be: how many processes, how sums travel, when an evaluation may end.

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
    """How a cluster is to work; raises UserError for what cannot be."""

    workers: int = 2
    """Workers that are started, and started again where one dies; others may join (`cotswold worker`)."""
    servers: int = 1
    """Parameter servers; their number changes no bit of a result."""
    server_copies: int = 1
    """Servers that have each part of the parameters of replicas: with 2 or more the run outlives a server."""
    server_copies_min: int = 1
    """With fewer servers that have a part pushes to it wait."""
    replication: Way = "star"
    """By which way what is different comes to servers that have a part."""
    disks: str | None = None
    """The folder in which each server has what it knew a while ago, from which a part goes on that every
    server has lost; None for no such."""
    flush_seconds: float = 1.0
    """That while: what changes is on disk after so long, if the disk is fast enough."""
    standing: tuple[str, ...] = ()
    """Where controllers of a cluster of parameter servers are reached that outlives this one, HOST:PORT; then
    none of these settings about servers counts but `buckets`."""
    note: str | None = None
    """The file in which a run keeps what it is called on such a cluster: so that it has the cluster forget
    what a process of it that was killed has left there."""
    buckets: int | None = None
    """Parts of the parameters that have copies, each by itself, at most; 8 a server where nothing is said."""
    travel: Travel = "sandblaster"
    """`bunyip`: workers keep the point and the direction, step lengths travel, sums are reduced over the
    workers. `sandblaster`: workers pull the point when an evaluation begins, and push their sums."""
    portion: int = 320
    """Patterns of a portion (Bunyip: 320)."""
    fraction: float = 1.0
    """How much of the patterns must be done before an evaluation may end (Bunyip: 0.8)."""
    deterministic: bool = False
    """Sums along a fixed tree over portions: same bits whoever computed what."""
    seed: int = 0
    """Deals patterns to portions."""
    deadline: float | None = None
    """An evaluation that draws its own set ends after this many times its usual seconds."""
    copies: int = 2
    """Workers that may have one of the last portions; 1 for no backup copies."""
    threads: int = 1
    """Of a worker."""
    ranks: int = 1
    """Processes that a worker is, which leads the others: cores are shared out by it."""
    encrypt: bool = True
    """Whether what goes between hosts is secret (CURVE: at about a fifth of the speed)."""
    shard_bytes: int = 1 << 20
    """The size of a shard, rounded to whole elements."""
    ports: tuple[int, int] | None = None
    """The first and the last port at which processes listen for those of other hosts; None for any."""
    spread_servers: bool = False
    """Whether parameter servers stand on all machines, by their cores; otherwise on the coordinator's."""
    link_bits_per_second: int = 1_000_000_000
    """Of the card of each machine: plans of reductions are chosen for it."""
    restarts: bool = True
    """Whether a worker that died is started again."""
    silent_seconds: float = 10.0
    """A worker that has said nothing for so long gives its portions back."""
    alone_seconds: float = 300.0
    """How long the cluster waits, without any worker, before it gives up."""
    start_seconds: float = 120.0
    """How long processes may take until they have said hello."""

    @property
    def keeps_copies(self) -> bool:
        """Whether the parameters of replicas are in buckets, each by itself on some servers or disks."""
        return self.server_copies > 1 or self.disks is not None or bool(self.standing)

    @property
    def members(self) -> int:
        """Processes with which the coordinator speaks, an evaluator not counted. As many speak with a server,
        or fewer; of servers that outlive the run the number is not known."""
        servers = 0 if self.standing else self.servers
        return self.workers + servers + (self.keeps_copies and not self.standing)

    @property
    def copying(self) -> Copying:
        """How servers keep copies."""
        return Copying(least=self.server_copies_min, way=self.replication)

    @property
    def lost_seconds(self) -> float:
        """For so long a connection may carry nothing that is acknowledged; then the peer is lost."""
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
                raise UserError(f"{name} = {getattr(self, name)}: a cluster needs at least one")
        if self.buckets is not None and self.buckets < 1:
            raise UserError(f"buckets = {self.buckets}: the parameters are in one at least")
        if self.link_bits_per_second < 1:
            raise UserError(f"link_bits_per_second = {self.link_bits_per_second}; it is more than 0")
        if self.server_copies > min(self.servers, MOST_COPIES):
            raise UserError(
                f"server_copies = {self.server_copies}, servers = {self.servers}; at most {MOST_COPIES}, "
                "each on a server of its own: give more servers, or fewer copies"
            )
        if self.server_copies_min > self.server_copies:
            raise UserError(
                f"server_copies_min = {self.server_copies_min}, server_copies = {self.server_copies}: pushes "
                "would wait for ever; give more copies, or a smaller least"
            )
        if self.ports is not None and not 0 < self.ports[0] <= self.ports[1] < 1 << 16:
            raise UserError(f"ports {self.ports[0]} to {self.ports[1]}: they lie between 1 and 65535")
        if not 0 < self.fraction <= 1:
            raise UserError(f"fraction = {self.fraction} of the patterns; it lies above 0 and is at most 1")
        if self.deadline is not None and not self.deadline > 0:
            raise UserError(f"deadline = {self.deadline} times the usual; it is more than 0")
        if self.shard_bytes < 64:
            raise UserError(f"shards of {self.shard_bytes} bytes; take at least 64 (1 MiB is the default)")
        for name in ("silent_seconds", "alone_seconds", "start_seconds", "flush_seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} = {getattr(self, name)}; it is more than 0")
