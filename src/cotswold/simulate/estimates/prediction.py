"""Predict the time, bytes and cost of an update from a cluster, a network and a grid.

Knows: how programs, devices and links combine, the contents of a report. Does not know: recipes, how a
network is divided, events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Protocol

from cotswold.geometry import Grid
from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.hardware.device import DeviceModel
from cotswold.simulate.hardware.topology import Topology
from cotswold.simulate.timeline.actions import Program
from cotswold.simulate.timeline.events import Timeline, run_programs

MEGA = 1e6


class Workload(Protocol):
    """A network and a batch whose update can be predicted."""

    @property
    def images(self) -> int:
        """Batch size."""
        ...

    @property
    def parameters(self) -> int:
        """Number of weights."""
        ...

    @property
    def update_flops(self) -> int:
        """FLOPs of the products of an update."""
        ...

    def programs(self, grid: Grid, speed: DeviceModel) -> tuple[Program, ...]:
        """Return the program of every rank of a grid for one update."""
        ...

    def rank_bytes(self, grid: Grid) -> int:
        """Return the memory in bytes of the rank that needs most."""
        ...


@dataclass(frozen=True)
class Prediction:
    """The predicted update on a cluster.

    Seconds are means over ranks; ``compute_seconds``, ``exposed_seconds`` and ``imbalance_seconds`` add up to
    ``seconds``.

    Attributes:
        cluster: Name of the cluster.
        grid: The grid of ranks of each replica, such as "2x4".
        ranks: Number of ranks of all replicas.
        hosts: Number of hosts.
        seconds: Seconds of the update.
        compute_seconds: Seconds of computation; ``operations`` has its parts.
        exposed_seconds: Seconds of waiting for messages in flight.
        imbalance_seconds: Seconds of waiting for slower ranks.
        overlapped_seconds: Seconds in which messages are in flight while their receiver computes.
        operations: Seconds by operation.
        images_per_second: Images per second.
        flops: FLOPs of the update.
        efficiency: FLOP/s as a fraction of the devices' peak.
        wire_bytes: Bytes sent between ranks.
        network_bytes: Bytes sent between hosts.
        messages: Number of messages.
        parameters: Number of weights.
        rank_bytes: Memory in bytes of the rank that needs most.
        fits: True if it has that much memory.
        dollars_per_thousand_updates: Cost in US dollars on rented hosts; None without a price.
        cents_per_mflops: US cents per sustained MFLOP/s on bought hosts; None without a price.
    """

    cluster: str
    grid: str
    ranks: int
    hosts: int
    seconds: float
    compute_seconds: float
    exposed_seconds: float
    imbalance_seconds: float
    overlapped_seconds: float
    operations: Mapping[str, float]
    images_per_second: float
    flops: int
    efficiency: float
    wire_bytes: int
    network_bytes: int
    messages: int
    parameters: int
    rank_bytes: int
    fits: bool
    dollars_per_thousand_updates: float | None
    cents_per_mflops: float | None

    @property
    def hidden_part(self) -> float | None:
        """Fraction of communication that computation hides; None without communication."""
        whole = self.overlapped_seconds + self.exposed_seconds
        return self.overlapped_seconds / whole if whole else None

    def as_dict(self) -> dict[str, object]:
        """Return all fields, for JSON."""
        return {**asdict(self), "hidden_part": self.hidden_part}


def predict(cluster: Cluster, work: Workload, grid: Grid, replicas: int = 1) -> Prediction:
    """Predict an update of a network on a grid of a cluster's devices.

    Args:
        cluster: The cluster.
        work: The network and its batch.
        grid: The grid of ranks of each replica.
        replicas: Number of replicas in the programs of ``work``.

    Returns:
        The prediction.

    Raises:
        ClusterError: The cluster has no link that the grid needs.
    """
    ranks = replicas * grid.size
    topology = Topology(cluster, ranks)
    speed = DeviceModel(cluster.device, topology.bandwidth, topology.contention, topology.speedup)
    timeline = run_programs(work.programs(grid, speed), topology)
    devices = min(ranks, cluster.size) * topology.cores
    flops, rank_bytes = work.update_flops, work.rank_bytes(grid)
    dollars, cents = cost(cluster, topology.hosts, timeline.seconds, flops)
    return Prediction(
        cluster=cluster.name,
        grid=str(grid),
        ranks=ranks,
        hosts=topology.hosts,
        seconds=timeline.seconds,
        compute_seconds=fmean(sum(rank.work.values()) for rank in timeline.ranks),
        exposed_seconds=fmean(rank.exposed_seconds for rank in timeline.ranks),
        imbalance_seconds=fmean(rank.imbalance for rank in timeline.ranks),
        overlapped_seconds=fmean(rank.hidden for rank in timeline.ranks),
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
    """Dollars for a thousand repetitions on rented hosts, and cents per sustained MFLOP/s on bought hosts."""
    rent, price = cluster.price.host_dollars_per_hour, cluster.price.host_dollars
    return (
        None if rent is None else 1000 * seconds / 3600 * rent * hosts,
        None if price is None else 100 * price * hosts / (flops / seconds / MEGA),
    )
