"""Algorithms that sum the vectors of many ranks: chain, trees, ring, halving, and hierarchies of these.

Knows: orders of ranks, groups within groups. Does not know: rates, the fastest algorithm (`reduction_time`).

An `Algorithm` is a function of an order of ranks and a range. It returns the steps after which the first rank
of the order has the sum of the range. Any order works; neighbours in the order should be
close in the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from cotswold.errors import GeometryError
from cotswold.geometry.reduction import ReductionPlan, Step

Algorithm: TypeAlias = Callable[[Sequence[int], int, int], list[Step]]
Tree: TypeAlias = "int | Sequence[Tree]"
"""A rank, or nested groups; the first rank of a group is its leader."""


def chain(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Chain: each rank, from the last, sends to the previous one, which adds its own vector and sends on.

    Cut into many pieces, every link carries the vector once, all links at the same time.
    """
    last = len(order) - 1
    return [Step(last - at, order[at], order[at - 1], begin, end) for at in range(last, 0, -1)]


def star(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Star: all ranks send to the first; best over shared memory, where pipelining gains nothing."""
    return [Step(0, rank, order[0], begin, end) for rank in order[1:]]


def binomial_tree(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Binomial tree: of two neighbours one sends to the other, then the same for the receivers.

    This is LAM's ``MPI_Reduce``.

    >>> [(step.stage, step.sender, step.receiver) for step in binomial_tree(range(4), 0, 1)]
    [(0, 1, 0), (0, 3, 2), (1, 2, 0)]
    """
    steps, stage, distance = [], 0, 1
    while distance < len(order):
        steps += [
            Step(stage, order[at], order[at - distance], begin, end)
            for at in range(distance, len(order), 2 * distance)
        ]
        stage, distance = stage + 1, 2 * distance
    return steps


def ring(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Ring: a reduce-scatter around the ring, then a gather to the first rank."""
    parts = _parts(begin, end, len(order))
    return _ring_steps(order, parts, 0, adds=True) + _gathered(order, parts, len(order) - 1)


def ring_to_all(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Ring all-reduce: a reduce-scatter around the ring, then an all-gather."""
    parts = _parts(begin, end, len(order))
    return _ring_steps(order, parts, 0, adds=True) + _ring_steps(order, parts, len(order) - 1, adds=False)


def _ring_steps(
    order: Sequence[int], parts: Sequence[tuple[int, int]], after: int, *, adds: bool
) -> list[Step]:
    """Send each part once around the ring, all parts at the same time.

    With ``adds``, rank i + 1 starts with part i, and rank i has the sum of part i afterwards. Without, rank i
    starts with part i.
    """
    count, ahead = len(order), 1 if adds else 0
    return [
        Step(after + turn, order[at], order[(at + 1) % count], first, last, adds)
        for turn in range(count - 1)
        for at in range(count)
        for first, last in [parts[(at - turn - ahead) % count]]
        if first < last
    ]


def recursive_halving(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Recursive halving: pairs exchange halves, then quarters, ...; then gather (Rabenseifner's reduce).

    Ranks beyond the largest power of two first send their whole vector to a neighbour.
    """
    count = 1 << len(order).bit_length() - 1
    steps = [Step(0, order[at], order[at - count], begin, end) for at in range(count, len(order))]
    stage = 1 if steps else 0
    ranges = [(begin, end)] * count
    distance = count // 2
    while distance:
        for at in range(count):
            first, last = ranges[at]
            middle = (first + last) // 2
            keeps_low = not at & distance
            sent = (middle, last) if keeps_low else (first, middle)
            if sent[0] < sent[1]:
                steps.append(Step(stage, order[at], order[at ^ distance], *sent))
        for at in range(count):
            first, last = ranges[at]
            middle = (first + last) // 2
            ranges[at] = (middle, last) if at & distance else (first, middle)
        stage, distance = stage + 1, distance // 2
    # gather along a tree: a rank with `distance` adjacent parts sends them together
    distance = 1
    while distance < count:
        for at in range(distance, count, 2 * distance):
            first, last = ranges[at][0], ranges[at + distance - 1][1]
            if first < last:
                steps.append(Step(stage, order[at], order[at - distance], first, last, is_sum=False))
        stage, distance = stage + 1, 2 * distance
    return steps


ALGORITHMS: dict[str, Algorithm] = {
    "binomial tree": binomial_tree,
    "chain": chain,
    "recursive halving": recursive_halving,
    "ring": ring,
    "star": star,
}


def hierarchy(tree: Tree, algorithms: Sequence[Algorithm]) -> Algorithm:
    """Return the algorithm that sums within the innermost groups, then between groups, level by level.

    ``algorithms`` holds one algorithm per level, the outermost first. The result ignores the order of ranks:
    its ranks are those of the tree, and the first of them has the sum.

    >>> algorithm = hierarchy([[0, 1], [2, 3]], [chain, star])
    >>> [(step.stage, step.sender, step.receiver) for step in algorithm([], 0, 1)]
    [(0, 1, 0), (0, 3, 2), (1, 2, 0)]
    """

    def steps_of(part: Tree, level: int, begin: int, end: int) -> list[Step]:
        if isinstance(part, int):
            return []
        if level >= len(algorithms) or not part:
            raise GeometryError("a hierarchy needs one algorithm per level and no empty groups")
        inner = [step for each in part for step in steps_of(each, level + 1, begin, end)]
        return inner + _shift_steps(algorithms[level](list(map(leader_of, part)), begin, end), inner)

    return lambda _, begin, end: steps_of(tree, 0, begin, end)


def leader_of(tree: Tree) -> int:
    """Return the leader of a group."""
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def leaves(tree: Tree) -> list[int]:
    """Return all ranks of a tree, in order."""
    return [tree] if isinstance(tree, int) else [rank for part in tree for rank in leaves(part)]


def across_lanes(algorithm: Algorithm, shares: Sequence[int]) -> Algorithm:
    """Split the range over several networks: lane ``i`` gets a fraction proportional to ``shares[i]``."""

    def steps_of(order: Sequence[int], begin: int, end: int) -> list[Step]:
        total, steps, at = sum(shares), [], 0
        for lane, share in enumerate(shares):
            first = begin + (end - begin) * at // total
            last = begin + (end - begin) * (at + share) // total
            if first < last:
                steps += [step._replace(lane=lane) for step in algorithm(order, first, last)]
            at += share
        return steps

    return steps_of


def four_stages(
    groups: Sequence[Sequence[Sequence[int]]],
    server: Sequence[int],
    lanes: Callable[[int, int], int],
) -> Algorithm:
    """Return Bunyip's reduction (Aberdeen et al. 2000, 5.2, figure 5), to the first rank of its server.

    ``groups`` are its four, A to D, of hosts of ranks; ``lanes(a, b)`` is the switch between two groups.
    Stages: (1) the ranks of each host sum in shared memory; (2) each host of A sends to its counterpart of B,
    and of C to its counterpart of D, all at once; (3) of every four hosts of B and D three send to the first
    over its three cards at once; (4) the remaining hosts form a binomial tree. The order of ranks is ignored.
    """
    if len(groups) != 4 or len({len(group) for group in groups}) != 1 or not groups[0]:
        raise GeometryError("four_stages needs four groups with the same number of hosts, at least 1 each")

    def steps_of(_: Sequence[int], begin: int, end: int) -> list[Step]:
        hosts = [host for group in groups for host in group]
        steps = [step for host in (server, *hosts) for step in star(host, begin, end)]
        left = [server[0]]
        for source, target in ((0, 1), (2, 3)):
            pairs = zip(groups[source], groups[target], strict=True)
            lane = lanes(source, target)
            steps += [Step(1, one[0], other[0], begin, end, lane=lane) for one, other in pairs]
            beside = [lanes(target, other) for other in range(4) if other != target]
            for at in range(0, len(groups[target]), 4):
                first, *others = groups[target][at : at + 4]
                left.append(first[0])
                steps += [
                    Step(2, host[0], first[0], begin, end, lane=lane)
                    for host, lane in zip(others, beside, strict=False)
                ]
        return steps + _shift_steps(binomial_tree(left, begin, end), steps)

    return steps_of


def reduction(count: int, algorithm: Algorithm, order: Sequence[int]) -> ReductionPlan:
    """Return the plan of an algorithm for an order of ranks 0 to n - 1; the first one gets the sum."""
    if sorted(order) != list(range(len(order))):
        raise GeometryError(f"order must hold each rank from 0 once, got {list(order)[:20]}")
    steps = algorithm(order, 0, count) if count else []
    return ReductionPlan(len(order), order[0], count, tuple(sorted(steps)))


def all_reduction(plan: ReductionPlan) -> ReductionPlan:
    """Return an all-reduce: the plan, then the broadcast back along the same steps."""
    return plan.then(plan.mirrored())


def ring_over_groups(count: int, groups: Sequence[Sequence[int]]) -> ReductionPlan:
    """Return an all-reduce: sum within each group, around a ring of group leaders, then broadcast back."""
    ranks = sum(map(len, groups))
    inner = tuple(step for group in groups for step in star(group, 0, count)) if count else ()
    within = ReductionPlan(ranks, groups[0][0], count, inner)
    firsts = ring_to_all([group[0] for group in groups], 0, count)
    between = ReductionPlan(ranks, None, count, tuple(firsts))
    return within.then(between).then(within.mirrored())


def _shift_steps(steps: Sequence[Step], earlier: Sequence[Step]) -> list[Step]:
    after = max((step.stage for step in earlier), default=-1) + 1
    return [step._replace(stage=step.stage + after) for step in steps]


def _parts(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    edges = [begin + (end - begin) * at // count for at in range(count + 1)]
    return list(pairwise(edges))


def _gathered(order: Sequence[int], parts: Sequence[tuple[int, int]], stage: int) -> list[Step]:
    return [
        Step(stage, order[at], order[0], *part, is_sum=False)
        for at, part in enumerate(parts)
        if at and part[0] < part[1]
    ]
