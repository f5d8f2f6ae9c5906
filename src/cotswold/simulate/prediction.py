"""From a cluster, a network and a grid to the time, bytes and cost of an update.

Knows: how programs, devices and links come together, what is reported. Does not know: recipes, how a network
is cut, events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Protocol

from cotswold.geometry import Grid
from cotswold.simulate.actions import Program
from cotswold.simulate.cluster import Cluster
from cotswold.simulate.device import Speed
from cotswold.simulate.events import Timeline, run_programs
from cotswold.simulate.topology import Topology

MEGA = 1e6


class Workload(Protocol):
    """A network and a batch of which an update can be predicted."""

    @property
    def images(self) -> int:
        """Pictures in the batch."""
        ...

    @property
    def parameters(self) -> int:
        """Weights."""
        ...

    @property
    def update_flops(self) -> int:
        """FLOPs of an update, products alone."""
        ...

    def programs(self, grid: Grid, speed: Speed) -> tuple[Program, ...]:
        """What every rank of a grid does in an update."""
        ...

    def rank_bytes(self, grid: Grid) -> int:
        """Memory of the rank that needs most."""
        ...


@dataclass(frozen=True)
class Prediction:
    """An update on a cluster. Seconds of ranks are means; ``compute``, ``exposed`` and ``imbalance`` add up
    to ``seconds``."""

    cluster: str
    grid: str
    ranks: int
    hosts: int
    seconds: float
    compute_seconds: float
    """Of which ``operations`` names the parts."""
    exposed_seconds: float
    """Waiting for messages that are under way."""
    imbalance_seconds: float
    """Waiting for slower ranks."""
    hidden_seconds: float
    """Messages under way while their receiver computes."""
    operations: Mapping[str, float]
    images_per_second: float
    flops: int
    efficiency: float
    """FLOP/s over the devices' peak."""
    wire_bytes: int
    """Between ranks."""
    network_bytes: int
    """Between hosts."""
    messages: int
    parameters: int
    rank_bytes: int
    """Memory that the fullest rank needs."""
    fits: bool
    """Whether it has that much."""
    dollars_per_thousand_updates: float | None
    cents_per_mflops: float | None

    @property
    def hidden_part(self) -> float | None:
        """The part of communication that computation hides; None where there is none."""
        whole = self.hidden_seconds + self.exposed_seconds
        return self.hidden_seconds / whole if whole else None

    def as_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        return {**asdict(self), "hidden_part": self.hidden_part}


def predict(cluster: Cluster, work: Workload, grid: Grid) -> Prediction:
    """An update of a network on a grid of a cluster's devices. Raises ClusterError where links are
    missing."""
    topology = Topology(cluster, grid.size)
    speed = Speed(cluster.device, topology.bandwidth, topology.crowd, topology.times)
    timeline = run_programs(work.programs(grid, speed), topology)
    devices = min(grid.size, cluster.size) * topology.cores
    flops, rank_bytes = work.update_flops, work.rank_bytes(grid)
    dollars, cents = cost(cluster, topology.hosts, timeline.seconds, flops)
    return Prediction(
        cluster=cluster.name,
        grid=str(grid),
        ranks=grid.size,
        hosts=topology.hosts,
        seconds=timeline.seconds,
        compute_seconds=fmean(sum(rank.work.values()) for rank in timeline.ranks),
        exposed_seconds=fmean(rank.exposed for rank in timeline.ranks),
        imbalance_seconds=fmean(rank.imbalance for rank in timeline.ranks),
        hidden_seconds=fmean(rank.hidden for rank in timeline.ranks),
        operations=_operations(timeline),
        images_per_second=work.images / timeline.seconds,
        flops=flops,
        efficiency=flops / timeline.seconds / (devices * cluster.device.peak_gflops * 1e9),
        wire_bytes=timeline.bytes_sent,
        network_bytes=timeline.bytes_between_hosts,
        messages=timeline.messages,
        parameters=work.parameters,
        rank_bytes=rank_bytes,
        fits=_fits(cluster, topology, rank_bytes),
        dollars_per_thousand_updates=dollars,
        cents_per_mflops=cents,
    )


def _operations(timeline: Timeline) -> dict[str, float]:
    kinds = dict.fromkeys(kind for rank in timeline.ranks for kind in rank.work)
    return {kind: fmean(rank.work.get(kind, 0.0) for rank in timeline.ranks) for kind in kinds}


def _fits(cluster: Cluster, topology: Topology, rank_bytes: int) -> bool:
    if cluster.host_memory_gb is not None:
        return topology.ranks_on_host * rank_bytes <= cluster.host_memory_gb * 1e9
    sharing = -(-topology.ranks_on_host // cluster.devices)
    return sharing * rank_bytes <= cluster.device.memory_gb * 1e9


def cost(cluster: Cluster, hosts: int, seconds: float, flops: int) -> tuple[float | None, float | None]:
    """Dollars of a thousand times this where hosts are rented, cents per sustained MFLOP/s where bought."""
    rent, price = cluster.price.host_dollars_per_hour, cluster.price.host_dollars
    return (
        None if rent is None else 1000 * seconds / 3600 * rent * hosts,
        None if price is None else 100 * price * hosts / (flops / seconds / MEGA),
    )
