"""Prediction of one evaluation of value and gradient on a cluster, from the point to the sum on the shards.

Knows: the steps of an evaluation, and the two ways to distribute vectors. Does not know: recipes, the hosts,
what a portion computes, how long a plan takes (`geometry.reduction_time`).

The parts follow each other, as on the slowest worker:

    point       workers receive it: pulled by all from the servers (`sandblaster`), or the new direction is
                pulled by one worker and broadcast by the mirror of the reduction's plan (`bunyip`)
    portions    the worker that has most of them computes
    sum         `bunyip`: reduced over the workers by a plan; `sandblaster`: pushed by all to the servers, all
                but the last push while portions are computed
    push        `bunyip`: the first worker of the plan pushes the sum to the servers
    shards      computation of the servers for the optimiser, and of the workers to make the point
    rounds      small messages of coordinator, workers and servers that wait for each other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from heapq import heapreplace

from cotswold.errors import ClusterError
from cotswold.geometry import Network, ReductionPlan, Step, best_plan
from cotswold.geometry.reduction_time import predicted_seconds
from cotswold.simulate.estimates.batch_network import BatchNetwork, batch_network
from cotswold.simulate.estimates.prediction import cost
from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.hardware.device import GIGA, DeviceModel
from cotswold.simulate.hardware.topology import Topology
from cotswold.simulate.workloads.batch_work import BatchWork, PointTransfer

FLUSH_PORTIONS = 8
"""Number of portions that a worker sums before it pushes (`batch.core.settings.EvaluationSettings`)."""
MESSAGES: Mapping[PointTransfer, int] = {"bunyip": 9, "sandblaster": 8}
"""Number of small messages in sequence: begin, ready, grant, computed, (reduce,) kept, pushed, round, answer.

The bytes of pulls and pushes are counted separately.
"""
SHARD_PASSES = 16
"""Number of times that servers pass over a vector.

x + α d (3), the sum folded (3) and scaled (2), the inner products that every method needs (6), its digest and
a copy (2).
"""
POINT_PASSES: Mapping[PointTransfer, int] = {"bunyip": 6, "sandblaster": 2}
"""Number of times that a worker passes over a vector: x + α d (3), its digest, a copy (2); or a copy."""


@dataclass(frozen=True)
class ReductionChoice:
    """A reduction by a plan over the workers, in ``pieces`` pieces (None: the default)."""

    name: str
    plan: ReductionPlan
    pieces: int | None = None

    def seconds(self, network: Network, value_bytes: int) -> float:
        """Seconds until the first worker has the sum."""
        return predicted_seconds(self.plan, network, value_bytes, self.pieces)

    def broadcast_seconds(self, network: Network, value_bytes: int) -> float:
        """Seconds until all workers have a vector of the first."""
        return predicted_seconds(self.plan.mirrored(), network, value_bytes, self.pieces)


@dataclass(frozen=True)
class EvaluationPrediction:
    """The predicted evaluation on a cluster.

    Attributes:
        cluster: Name of the cluster.
        workers: Number of workers.
        hosts: Number of hosts.
        servers: Number of parameter servers.
        point_transfer: Way to distribute vectors.
        reduction: Name of the reduction plan; empty if nothing is reduced.
        seconds: Seconds of the first evaluation along a direction.
        repeated_seconds: Seconds of further evaluations along it, for which `bunyip` sends only step lengths.
        parts: Seconds of the slowest worker by part; they add up to ``seconds``.
        computing_fraction: Fraction of ``seconds`` for which the mean worker computes portions.
        samples: Number of samples evaluated.
        samples_per_second: Samples per second.
        flops: FLOPs of the evaluation.
        flops_per_second: FLOP/s.
        efficiency: FLOP/s as a fraction of the devices' peak.
        wire_bytes: Bytes sent between processes.
        network_bytes: Bytes sent between hosts.
        parameters: Number of parameters.
        worker_bytes: Memory of a worker in bytes.
        fits: True if the devices have enough memory.
        dollars_per_thousand_evaluations: Cost in US dollars on rented hosts; None without a price.
        cents_per_mflops: US cents per sustained MFLOP/s on bought hosts; None without a price.
    """

    cluster: str
    workers: int
    hosts: int
    servers: int
    point_transfer: PointTransfer
    reduction: str
    seconds: float
    repeated_seconds: float
    parts: Mapping[str, float]
    computing_fraction: float
    samples: int
    samples_per_second: float
    flops: int
    flops_per_second: float
    efficiency: float
    wire_bytes: int
    network_bytes: int
    parameters: int
    worker_bytes: int
    fits: bool
    dollars_per_thousand_evaluations: float | None
    cents_per_mflops: float | None

    def as_dict(self) -> dict[str, object]:
        """Return all fields, for JSON."""
        return asdict(self)


def predict_evaluation(
    cluster: Cluster, work: BatchWork, workers: int, reduction: ReductionChoice | None = None
) -> EvaluationPrediction:
    """Predict an evaluation of value and gradient on a cluster.

    A single worker has everything in its own memory: there are no servers and no messages.

    Args:
        cluster: The cluster.
        work: The evaluation.
        workers: Number of workers, at least 1.
        reduction: Reduction of the sums (default: the plan that training would choose).

    Returns:
        The prediction.

    Raises:
        ClusterError: Fewer than one worker, too many hosts to choose a plan, or missing links.
    """
    if workers < 1:
        raise ClusterError(f"workers must be at least 1, got {workers}")
    topology = Topology(cluster, min(workers, cluster.size) if cluster.server is not None else workers)
    alone = workers == 1
    speed = DeviceModel(
        cluster.device, topology.bandwidth, topology.contention, topology.speedup if alone else 1.0
    )
    sharing = -(-workers // cluster.workers)
    portion_seconds = work.portion_seconds(speed) * sharing
    most, mean = (each * portion_seconds / work.portion for each in _shares(work.counted, workers))
    network = batch_network(cluster, workers, 0 if alone else work.servers)
    bandwidth = speed.bytes_per_second(work.vector_bytes)
    if alone:
        parts = {"portions": most, "shards": SHARD_PASSES * work.vector_bytes / bandwidth}
        name, point, wire = "", 0.0, (0, 0)
    elif work.point_transfer == "bunyip":
        chosen = reduction or best_reduction(network.among_workers, work)
        name = chosen.name
        parts, point, wire = _bunyip(work, network, chosen, most)
    else:
        name = ""
        parts, point, wire = _sandblaster(work, network, most)
    if not alone:
        servers = SHARD_PASSES / min(work.servers, cluster.devices)
        passes = servers + POINT_PASSES[work.point_transfer]
        parts["shards"] = passes * work.vector_bytes / bandwidth
        parts["rounds"] = MESSAGES[work.point_transfer] * network.message_seconds
    seconds = sum(parts.values())
    hosts = len(network.network.hosts)
    devices = min(workers, cluster.workers) * (topology.cores if alone else 1)
    dollars, cents = cost(cluster, hosts, seconds, work.flops)
    return EvaluationPrediction(
        cluster=cluster.name,
        workers=workers,
        hosts=hosts,
        servers=0 if alone else work.servers,
        point_transfer=work.point_transfer,
        reduction=name,
        seconds=seconds,
        repeated_seconds=seconds - point,
        parts=parts,
        computing_fraction=mean / seconds,
        samples=work.evaluated_samples,
        samples_per_second=work.evaluated_samples / seconds,
        flops=work.flops,
        flops_per_second=work.flops / seconds,
        efficiency=work.flops / seconds / (devices * cluster.device.peak_gflops * GIGA),
        wire_bytes=wire[0],
        network_bytes=wire[1],
        parameters=work.parameters,
        worker_bytes=work.worker_bytes(workers),
        fits=_fits(cluster, network, work.worker_bytes(workers)),
        dollars_per_thousand_evaluations=dollars,
        cents_per_mflops=cents,
    )


def best_reduction(network: Network, work: BatchWork) -> ReductionChoice:
    """Return the plan that `training` would choose on this network."""
    return ReductionChoice(*_choose_plan(_NetworkKey(network), work.parameters, work.layers.value_bytes))


class _NetworkKey:
    """A network as a key: equal networks share their plans."""

    def __init__(self, network: Network) -> None:
        self.network = network
        uplinks = tuple(sorted(network.uplink_bits_per_second.items()))
        self._key = network.hosts, uplinks, network.memory_bytes_per_second, network.message_ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NetworkKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def _choose_plan(network: _NetworkKey, count: int, element_bytes: int) -> tuple[str, ReductionPlan]:
    return best_plan(network.network, count, element_bytes, 0)


def _shares(counted: tuple[int, ...], workers: int) -> tuple[int, float]:
    """Samples of the worker that has most, and the mean; the next portion goes to the least loaded worker."""
    loads = [0] * workers
    for samples in counted:
        heapreplace(loads, loads[0] + samples)
    return max(loads), sum(loads) / workers


def _bunyip(
    work: BatchWork, network: BatchNetwork, reduction: ReductionChoice, most: float
) -> tuple[dict[str, float], float, tuple[int, int]]:
    """Return seconds by part, those of a new direction, and bytes between processes and between hosts."""
    value_bytes, among = work.layers.value_bytes, network.among_workers
    pull = _plan_vector_transfers(work, network, [0], to_servers=False)
    push = _plan_vector_transfers(work, network, [0], to_servers=True)
    point = predicted_seconds(pull, network.network, value_bytes, 1)
    point += reduction.broadcast_seconds(among, value_bytes)
    parts = {
        "point": point,
        "portions": most,
        "sum": reduction.seconds(among, value_bytes),
        "push": predicted_seconds(push, network.network, value_bytes, 1),
    }
    plans = (
        (reduction.plan, among),
        (reduction.plan, among),
        (pull, network.network),
        (push, network.network),
    )
    counts = [_bytes(plan, on, value_bytes) for plan, on in plans]
    return parts, point, (sum(all_ for all_, _ in counts), sum(between for _, between in counts))


def _sandblaster(
    work: BatchWork, network: BatchNetwork, most: float
) -> tuple[dict[str, float], float, tuple[int, int]]:
    value_bytes, whole = work.layers.value_bytes, network.network
    everyone = range(network.workers)
    pull = _plan_vector_transfers(work, network, everyone, to_servers=False)
    push = _plan_vector_transfers(work, network, everyone, to_servers=True)
    one_push = predicted_seconds(push, whole, value_bytes, 1)
    pushes = -(-max(1, len(work.counted) // network.workers) // FLUSH_PORTIONS)
    parts = {
        "point": predicted_seconds(pull, whole, value_bytes, 1),
        "portions": most,
        "sum": max(0.0, (pushes - 1) * one_push - most) + one_push,
    }
    pulled, pushed = _bytes(pull, whole, value_bytes), _bytes(push, whole, value_bytes)
    return parts, 0.0, (pulled[0] + pushes * pushed[0], pulled[1] + pushes * pushed[1])


def _plan_vector_transfers(
    work: BatchWork, network: BatchNetwork, workers: range | list[int], *, to_servers: bool
) -> ReductionPlan:
    """Plan the messages of a vector that these workers pull from the servers, or push to them."""
    steps, count = [], work.parameters
    for number in range(work.servers):
        begin, end = count * number // work.servers, count * (number + 1) // work.servers
        server = network.workers + number
        for worker in workers if begin < end else ():
            ends = (worker, server) if to_servers else (server, worker)
            steps.append(Step(0, *ends, begin, end, to_servers))
    return ReductionPlan(network.network.ranks, None, count, tuple(steps))


def _bytes(plan: ReductionPlan, network: Network, value_bytes: int) -> tuple[int, int]:
    """Bytes of a plan between all ranks, and between hosts."""
    whole = between = 0
    for step in plan.steps:
        size = (step.end - step.begin) * value_bytes
        whole += size
        if network.host_of[step.sender] != network.host_of[step.receiver]:
            between += size
    return whole, between


def _fits(cluster: Cluster, network: BatchNetwork, worker_bytes: int) -> bool:
    fullest = max(len(host.ranks) for host in network.among_workers.hosts)
    if cluster.host_memory_gb is not None:
        return fullest * worker_bytes <= cluster.host_memory_gb * GIGA
    return -(-fullest // cluster.devices) * worker_bytes <= cluster.device.memory_gb * GIGA
