"""Ways of summing the vectors of many ranks: chain, trees, ring, halving, and hierarchies of these.

Knows: orders of ranks, groups within groups. Does not know: rates, which way is the fastest
(`reduction_time`).

A *way* is a function of an order of ranks and a range, which returns steps after which the first rank of the
order has the sum of the range. Any order will do: neighbours in it should be close in the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from cotswold.errors import GeometryError
from cotswold.geometry.reduction import ReductionPlan, Step

Way: TypeAlias = Callable[[Sequence[int], int, int], list[Step]]
Tree: TypeAlias = "int | Sequence[Tree]"
"""A rank, or groups within groups; the first rank in a group speaks for it."""


def chain(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """The last sends to the one before, which adds its own and sends on. Cut into many pieces every link
    carries the vector once, all at the same time."""
    last = len(order) - 1
    return [Step(last - at, order[at], order[at - 1], begin, end) for at in range(last, 0, -1)]


def star(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """All send to the first: the best over shared memory, where nothing is gained by waiting."""
    return [Step(0, rank, order[0], begin, end) for rank in order[1:]]


def binomial_tree(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Of neighbours one sends to the other, then of those that are left (LAM's ``MPI_Reduce``).

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
    """Every rank ends up with the sum of one part, each part having gone once around; then all parts go to
    the first rank."""
    parts = _parts(begin, end, len(order))
    return _around(order, parts, 0, adds=True) + _gathered(order, parts, len(order) - 1)


def ring_to_all(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Each part goes once around to be summed, and once more so that every rank has it."""
    parts = _parts(begin, end, len(order))
    return _around(order, parts, 0, adds=True) + _around(order, parts, len(order) - 1, adds=False)


def _around(order: Sequence[int], parts: Sequence[tuple[int, int]], after: int, *, adds: bool) -> list[Step]:
    """Each part once around the ring, all at the same time; before sums go around part i is rank i + 1's to
    send, and rank i has its sum afterwards, which it sends first in the second turn."""
    count, ahead = len(order), 1 if adds else 0
    return [
        Step(after + turn, order[at], order[(at + 1) % count], first, last, adds)
        for turn in range(count - 1)
        for at in range(count)
        for first, last in [parts[(at - turn - ahead) % count]]
        if first < last
    ]


def recursive_halving(order: Sequence[int], begin: int, end: int) -> list[Step]:
    """Pairs exchange halves, then quarters, and so on; then parts are collected (Rabenseifner's reduce).

    Ranks beyond the greatest power of two first send all that they have to a neighbour.
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
    # collected along a tree: who has `distance` parts side by side hands them on together
    distance = 1
    while distance < count:
        for at in range(distance, count, 2 * distance):
            first, last = ranges[at][0], ranges[at + distance - 1][1]
            if first < last:
                steps.append(Step(stage, order[at], order[at - distance], first, last, adds=False))
        stage, distance = stage + 1, 2 * distance
    return steps


WAYS: dict[str, Way] = {
    "binomial tree": binomial_tree,
    "chain": chain,
    "recursive halving": recursive_halving,
    "ring": ring,
    "star": star,
}


def hierarchy(tree: Tree, ways: Sequence[Way]) -> Way:
    """Sum within the smallest groups first, then between these, by a way for each level, the outermost first.

    The way that is returned takes no order: its ranks are those of the tree, whose first rank has the sum.

    >>> way = hierarchy([[0, 1], [2, 3]], [chain, star])
    >>> [(step.stage, step.sender, step.receiver) for step in way([], 0, 1)]
    [(0, 1, 0), (0, 3, 2), (1, 2, 0)]
    """

    def steps_of(part: Tree, level: int, begin: int, end: int) -> list[Step]:
        if isinstance(part, int):
            return []
        if level >= len(ways) or not part:
            raise GeometryError("a hierarchy has no empty groups, and a way for every level")
        inner = [step for each in part for step in steps_of(each, level + 1, begin, end)]
        return inner + _later(ways[level](list(map(first_of, part)), begin, end), inner)

    return lambda _, begin, end: steps_of(tree, 0, begin, end)


def first_of(tree: Tree) -> int:
    """The rank that speaks for a group."""
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def leaves(tree: Tree) -> list[int]:
    """All ranks of a tree, in its order."""
    return [tree] if isinstance(tree, int) else [rank for part in tree for rank in leaves(part)]


def over_lanes(way: Way, shares: Sequence[int]) -> Way:
    """Several networks at once, lane ``i`` with a part of the range in proportion to ``shares[i]``."""

    def steps_of(order: Sequence[int], begin: int, end: int) -> list[Step]:
        total, steps, at = sum(shares), [], 0
        for lane, share in enumerate(shares):
            first = begin + (end - begin) * at // total
            last = begin + (end - begin) * (at + share) // total
            if first < last:
                steps += [step._replace(lane=lane) for step in way(order, first, last)]
            at += share
        return steps

    return steps_of


def four_stages(
    groups: Sequence[Sequence[Sequence[int]]],
    server: Sequence[int],
    lanes: Callable[[int, int], int],
) -> Way:
    """Bunyip's reduction (Aberdeen et al. 2000, 5.2, figure 5), to the first rank of its server.

    ``groups`` are its four, A to D, of hosts of ranks; ``lanes(a, b)`` is the switch between two groups.
    First the ranks of each host, in shared memory; then each host of A to its counterpart of B, and of C to
    that of D, all at once; then of every four hosts of B and D three send to the first over its three cards
    at once; then a binomial tree over those that are left. The way takes no order.
    """
    if len(groups) != 4 or len({len(group) for group in groups}) != 1 or not groups[0]:
        raise GeometryError("Bunyip has four groups of as many hosts each; describe it so")

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
        return steps + _later(binomial_tree(left, begin, end), steps)

    return steps_of


def reduction(count: int, way: Way, order: Sequence[int]) -> ReductionPlan:
    """The plan of a way over ranks 0 to ``len(order) - 1`` in any order; the first of it has the sum."""
    if sorted(order) != list(range(len(order))):
        raise GeometryError(f"{list(order)[:20]} is no order of ranks from 0")
    steps = way(order, 0, count) if count else []
    return ReductionPlan(len(order), order[0], count, tuple(sorted(steps)))


def all_reduction(plan: ReductionPlan) -> ReductionPlan:
    """Sum, and broadcast by the mirror: every rank has the sum afterwards."""
    return plan.followed_by(plan.mirrored())


def ring_over_groups(count: int, groups: Sequence[Sequence[int]]) -> ReductionPlan:
    """Sum within each group, around a ring of the first of each, and back: every rank has the sum."""
    ranks = sum(map(len, groups))
    inner = tuple(step for group in groups for step in star(group, 0, count)) if count else ()
    within = ReductionPlan(ranks, groups[0][0], count, inner)
    firsts = ring_to_all([group[0] for group in groups], 0, count)
    between = ReductionPlan(ranks, None, count, tuple(firsts))
    return within.followed_by(between).followed_by(within.mirrored())


def _later(steps: Sequence[Step], earlier: Sequence[Step]) -> list[Step]:
    after = max((step.stage for step in earlier), default=-1) + 1
    return [step._replace(stage=step.stage + after) for step in steps]


def _parts(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    edges = [begin + (end - begin) * at // count for at in range(count + 1)]
    return list(pairwise(edges))


def _gathered(order: Sequence[int], parts: Sequence[tuple[int, int]], stage: int) -> list[Step]:
    return [
        Step(stage, order[at], order[0], *part, adds=False)
        for at, part in enumerate(parts)
        if at and part[0] < part[1]
    ]
