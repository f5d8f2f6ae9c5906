"""The cluster Bunyip as its paper describes it: its reductions, and the workloads of figures 6 and 8.

Knows: statements of Aberdeen, Baxter and Edwards 2000, and our assumptions on workloads. Does not know: how
long anything takes.

Plans pass whole vectors on, as MPI does, not pieces. The paper does not state the order of the processes in
LAM's tree: host by host, or the first of each host before the others.
"""

from __future__ import annotations

from dataclasses import replace

from cotswold.geometry import MapShape, Network
from cotswold.geometry.reduction_plans import binomial_tree, four_stages, reduction
from cotswold.geometry.reduction_time import predicted_seconds
from cotswold.simulate.estimates.batch import ReductionChoice
from cotswold.simulate.estimates.batch_network import batch_network, switch_between
from cotswold.simulate.hardware.cluster import Cluster
from cotswold.simulate.hardware.reader import load_cluster
from cotswold.simulate.workloads.batch_work import BatchWork
from cotswold.simulate.workloads.layers import LayerGeometry, LayerWork

PROCESSORS = 194
"""Number of processors in reductions: two of each of 96 nodes and of the server (section 5.2)."""
PARAMETERS = 400 * 480 + 480 * 3203
"""Number of parameters: 1,729,440, or 6.6 MBytes, without biases (section 5.1)."""
POLL = 320
"""Number of samples between two polls of the master."""
FRACTION = 0.8
"""Fraction of the samples at which an evaluation ended (section 6.2)."""
STATED_STAGES = (0.18, 0.66, 0.9, 3.16)
"""Seconds of the four stages (section 5.2)."""
STATED_FOUR, STATED_LAM = 4.9, 8.5
"""Total seconds of both reductions (sections 5.1 and 5.2)."""
WORKLOADS: dict[str, tuple[tuple[int, int, int], int | None]] = {
    "400-80-200, 40,960 patterns": ((400, 80, 200), 40_960),
    "400-480-3203, 163,480 patterns": ((400, 480, 3203), 163_480),
    "400-480-3203, 32,000 patterns a processor": ((400, 480, 3203), None),
}
"""The lines of figure 8, from the bottom: a network, and its number of samples."""
SAMPLES_PER_PROCESSOR = 32_000


def machine(card_gbits: float | None = None) -> Cluster:
    """Return the shipped description, optionally with another rate of the nodes' cards."""
    found = load_cluster("bunyip2000")
    assert found.network is not None, "its nodes have cards"
    if card_gbits is None:
        return found
    return found.model_copy(update={"network": found.network.model_copy(update={"gbits": card_gbits})})


def stated_card_gbits() -> float:
    """Rate of a card by the paper's second stage: one vector in 0.66 s (section 5.2)."""
    return 32 * PARAMETERS / STATED_STAGES[1] / 1e9


def network(processors: int = PROCESSORS, card_gbits: float | None = None) -> Network:
    """Return the network of the first processors, of which two are the server's."""
    return batch_network(machine(card_gbits), processors, 0).among_workers


def four_stage_reduction(count: int = PARAMETERS) -> ReductionChoice:
    """Return the optimised reduction of all 194 processors (figure 5)."""
    cluster = machine()
    assert cluster.groups is not None, "the machine is described by groups"
    server, *nodes = (host.ranks for host in network().hosts)
    size = cluster.groups.hosts
    groups = [nodes[at : at + size] for at in range(0, len(nodes), size)]
    way = four_stages(groups, server, lambda one, other: switch_between(cluster, one, other))
    return ReductionChoice("Bunyip's four stages", reduction(count, way, range(PROCESSORS)), 1)


def lam_reduction(
    processors: int = PROCESSORS, count: int = PARAMETERS, *, in_turn: bool = False
) -> ReductionChoice:
    """Return LAM's library reduction: a binomial tree over all processes.

    The processes are in the order of the hosts, or if ``in_turn``, the first of every host before the second
    ones.
    """
    order = list(range(processors))
    if in_turn:
        order = [*order[::2], *order[1::2]]
    return ReductionChoice("LAM's binomial tree", reduction(count, binomial_tree, order), 1)


def stage_seconds(reduction: ReductionChoice, over: Network) -> list[float]:
    """Seconds that each of the four stages adds; the last has all that remain, as the paper counts."""
    found, before = [], 0.0
    for end in (1, 2, 3, reduction.plan.stages):
        steps = tuple(step for step in reduction.plan.steps if step.stage < end)
        until = predicted_seconds(replace(reduction.plan, steps=steps), over, 4, reduction.pieces)
        found.append(until - before)
        before = until
    return found


def evaluation(sizes: tuple[int, int, int], samples: int, processors: int) -> BatchWork:
    """Return the evaluation of 80 % of the samples, divided equally, at most 320 samples at a time."""
    share = max(1, round(FRACTION * samples / processors))
    portion = -(-share // -(-share // POLL))
    work = dense_work(sizes, share * processors, portion)
    return replace(work, biases=False, sample_bytes=4 * sizes[0])


def dense_work(sizes: tuple[int, int, int], samples: int, portion: int) -> BatchWork:
    """Return the evaluation of all samples, on a network with one hidden layer and biases."""
    inputs, hidden, outputs = sizes
    below = LayerGeometry.full(MapShape(inputs, 1, 1), hidden)
    layers = LayerWork((below, LayerGeometry.full(below.output, outputs)), portion)
    return BatchWork(layers, samples)
