"""From a cluster and a network to the time, bytes and cost of an update; the best grid.

Knows: how programs, devices and links come together, what is reported. Does not know: how a network is
cut, events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Protocol

from cotswold.errors import ClusterError
from cotswold.geometry import Grid
from cotswold.recipe import Recipe
from cotswold.simulate.actions import Program
from cotswold.simulate.cluster import Cluster
from cotswold.simulate.device import Speed
from cotswold.simulate.events import Timeline, play
from cotswold.simulate.stacks import StackWork
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


def workload(recipe: Recipe) -> StackWork:
    """An update of all stacks of a recipe; for `greedy` of the last one, those below computed forward.

    Raises ClusterError for recipes without stacks.
    """
    strategy = recipe.training.strategy
    if strategy == "supervised":
        raise ClusterError(f"{recipe.name} is supervised; simulate takes recipes of stacks, greedy or joint")
    return StackWork(tuple(recipe.stack_geometries()), recipe.training.batch, strategy)


def stages(recipe: Recipe) -> list[StackWork]:
    """The updates of a recipe: one a stack for `greedy`, those below computed forward; one for `joint`."""
    work = workload(recipe)
    if work.strategy == "joint":
        return [work]
    return [replace(work, stacks=work.stacks[:count]) for count in range(1, len(work.stacks) + 1)]


def predict(cluster: Cluster, work: Workload, grid: Grid) -> Prediction:
    """An update of a network on a grid of a cluster's devices. Raises ClusterError where links are
    missing."""
    topology = Topology(cluster, grid.size)
    speed = Speed(cluster.device, topology.bandwidth, topology.crowd)
    timeline = play(work.programs(grid, speed), topology)
    devices = min(grid.size, cluster.size)
    flops = work.update_flops
    needed = work.rank_bytes(grid) * -(-grid.size // devices)
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
        rank_bytes=work.rank_bytes(grid),
        fits=needed <= cluster.device.memory_gb * 1e9,
        **_cost(cluster, topology.hosts, timeline.seconds, flops),
    )


def grids(ranks: int) -> list[Grid]:
    """Every grid of so many ranks."""
    return [Grid(rows, ranks // rows) for rows in range(1, ranks + 1) if ranks % rows == 0]


def choose_grid(cluster: Cluster, recipe: Recipe, ranks: int) -> Grid:
    """The grid of so many ranks that trains a recipe of stacks fastest; see :func:`fastest_grid`."""
    return fastest_grid(cluster, stages(recipe), ranks)


def fastest_grid(cluster: Cluster, updates: Sequence[Workload], ranks: int) -> Grid:
    """The grid of so many ranks on which these updates take the least time together.

    Grids on which every rank has the memory come first; ties go to the fewest bytes on the wire.
    """

    def worth(grid: Grid) -> tuple[bool, float, int]:
        found = [predict(cluster, update, grid) for update in updates]
        unfit = not all(each.fits for each in found)
        return unfit, sum(each.seconds for each in found), sum(each.wire_bytes for each in found)

    return min(grids(ranks), key=worth)


def _operations(timeline: Timeline) -> dict[str, float]:
    kinds = dict.fromkeys(kind for rank in timeline.ranks for kind in rank.work)
    return {kind: fmean(rank.work.get(kind, 0.0) for rank in timeline.ranks) for kind in kinds}


def _cost(cluster: Cluster, hosts: int, seconds: float, flops: int) -> dict[str, float | None]:
    """Dollars of a thousand updates where hosts are rented, cents per sustained MFLOP/s where bought."""
    rent, price = cluster.price.host_dollars_per_hour, cluster.price.host_dollars
    return {
        "dollars_per_thousand_updates": None if rent is None else 1000 * seconds / 3600 * rent * hosts,
        "cents_per_mflops": None if price is None else 100 * price * hosts / (flops / seconds / MEGA),
    }
