"""Plans of reductions: every method sums each value once, at its root, for any ranks, order and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import ReductionPlan, Step
from cotswold.geometry.reduction_plans import (
    ALGORITHMS,
    across_lanes,
    all_reduction,
    chain,
    four_stages,
    hierarchy,
    leaves,
    reduction,
    ring_over_groups,
    star,
)

Contents = list[list["Counter[int]"]]
"""Counts of the ranks' values in each element of each rank."""


def carried_out(plan: ReductionPlan, given: Contents) -> Contents:
    """Return the final contents of all ranks: within a stage, each step sends the sender's earlier
    contents.
    """
    now = [[Counter(value) for value in vector] for vector in given]
    for stage in range(plan.stages):
        before = [[Counter(value) for value in vector] for vector in now]
        for step in plan.steps:
            if step.stage != stage:
                continue
            for element in range(step.begin, step.end):
                came = before[step.sender][element]
                if step.is_sum:
                    now[step.receiver][element].update(came)
                else:
                    now[step.receiver][element] = Counter(came)
    return now


def own_vectors(plan: ReductionPlan) -> Contents:
    return [[Counter({rank: 1}) for _ in range(plan.count)] for rank in range(plan.ranks)]


def everything(plan: ReductionPlan) -> list[Counter[int]]:
    return [Counter(range(plan.ranks)) for _ in range(plan.count)]


def assert_sums(plan: ReductionPlan) -> None:
    assert plan.root is not None
    summed = carried_out(plan, own_vectors(plan))
    assert summed[plan.root] == everything(plan)
    back = carried_out(
        plan.mirrored(), [summed[plan.root] if r == plan.root else v for r, v in enumerate(summed)]
    )
    assert all(vector == everything(plan) for vector in back)
    both = all_reduction(plan)
    assert all(vector == everything(plan) for vector in carried_out(both, own_vectors(both)))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@settings(max_examples=30)
@given(
    order=st.integers(1, 13).flatmap(lambda ranks: st.permutations(range(ranks))), count=st.integers(0, 20)
)
def test_every_way_sums_every_rank_once_and_its_mirror_brings_the_sum_back(
    name: str, order: Sequence[int], count: int
) -> None:
    plan = reduction(count, ALGORITHMS[name], order)
    assert plan.root == order[0]
    assert_sums(plan)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_hierarchy_of_any_ways_sums_every_rank_once(sizes: list[list[int]], data: st.DataObject) -> None:
    numbers = iter(data.draw(st.permutations(range(sum(map(sum, sizes))))))
    tree = [[[next(numbers) for _ in range(size)] for size in group] for group in sizes]
    ways = [ALGORITHMS[data.draw(st.sampled_from(sorted(ALGORITHMS)))] for _ in range(3)]
    assert_sums(reduction(data.draw(st.integers(1, 9)), hierarchy(tree, ways), leaves(tree)))


@given(
    shares=st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any),
    ranks=st.integers(1, 5),
    count=st.integers(0, 12),
)
def test_several_networks_share_the_vector_without_gap_or_overlap(
    shares: list[int], ranks: int, count: int
) -> None:
    plan = reduction(count, across_lanes(chain, shares), range(ranks))
    assert_sums(plan)
    assert all(shares[step.lane] for step in plan.steps)


@given(sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5), count=st.integers(0, 12))
def test_a_ring_over_groups_leaves_the_sum_with_every_rank(sizes: list[int], count: int) -> None:
    numbers = iter(range(sum(sizes)))
    plan = ring_over_groups(count, [[next(numbers) for _ in range(size)] for size in sizes])
    assert all(vector == everything(plan) for vector in carried_out(plan, own_vectors(plan)))


def bunyip_groups(hosts: int) -> tuple[list[list[list[int]]], list[int]]:
    """Return groups of hosts of two ranks, and the server's ranks, which are the first."""
    numbers = iter(range(2, 8 * hosts + 2))
    return [[[next(numbers), next(numbers)] for _ in range(hosts)] for _ in range(4)], [0, 1]


@pytest.mark.parametrize("hosts", [1, 3, 4, 6])
def test_bunyips_four_stages_sum_every_rank_once(hosts: int) -> None:
    groups, server = bunyip_groups(hosts)
    way = four_stages(groups, server, lambda one, other: min(one, other) * 4 + max(one, other))
    assert_sums(reduction(3, way, [*server, *(rank for group in groups for host in group for rank in host)]))


def test_the_papers_machine_has_194_processes_and_reduces_over_three_cards_at_once() -> None:
    groups, server = bunyip_groups(24)
    switches = {
        frozenset(pair): at for at, pair in enumerate([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    }
    way = four_stages(groups, server, lambda one, other: switches[frozenset((one, other))])
    order = [*server, *(rank for group in groups for host in group for rank in host)]
    plan = reduction(1, way, order)
    assert plan.ranks == 194
    by_stage = Counter(step.stage for step in plan.steps)
    assert by_stage[0] == 97 and by_stage[1] == 48 and by_stage[2] == 36
    assert sum(count for stage, count in by_stage.items() if stage > 2) == 12
    lanes: dict[int, set[int]] = {}
    for step in plan.steps:
        if step.stage == 2:
            lanes.setdefault(step.receiver, set()).add(step.lane)
    assert len(lanes) == 12 and all(len(used) == 3 for used in lanes.values())


@given(order=st.permutations(range(6)), count=st.integers(1, 50), elements=st.integers(1, 20))
def test_pieces_cut_every_step_and_agendas_hold_both_ends_of_each_message(
    order: Sequence[int], count: int, elements: int
) -> None:
    plan = reduction(count, ALGORITHMS["recursive halving"], order)
    pieces = plan.pieces(elements)
    assert [piece for begin, end in pieces for piece in range(begin, end)] == list(range(count))
    sent, received = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    elements_moved = 0
    for rank in range(plan.ranks):
        for at, items in enumerate(plan.agenda(rank, pieces)):
            for item in items:
                if item.sends:
                    sent[item.stage, rank, item.other, at] += 1
                    elements_moved += pieces[at][1] - pieces[at][0]
                else:
                    received[item.stage, item.other, rank, at] += 1
    assert sent == received and set(sent.values()) <= {1}
    assert elements_moved == sum(step.end - step.begin for step in plan.steps)


@given(order=st.permutations(range(5)), count=st.integers(0, 9), name=st.sampled_from(sorted(ALGORITHMS)))
def test_a_plan_travels_as_numbers(order: Sequence[int], count: int, name: str) -> None:
    plan = reduction(count, ALGORITHMS[name], order)
    assert ReductionPlan.from_numbers(plan.as_numbers()) == plan
    assert ReductionPlan.from_numbers(all_reduction(plan).as_numbers()).root is None


STEPS_THAT_ARE_NONE = [[0, 1, 0, 0, 5], [0, 2, 0, 0, 4], [-1, 1, 0, 0, 4], [0, 1, 1, 0, 4], [0, 1, 0, 2, 2]]


@pytest.mark.parametrize(
    "numbers",
    [
        *([], [2, 0], [0, 0, 4], [2, 2, 4], [2, 0, 4, 1], ["2", 0, 4]),
        *([2, 0, 4, *step, 1, 0] for step in STEPS_THAT_ARE_NONE),
    ],
)
def test_numbers_that_are_no_plan_are_refused(numbers: list[int]) -> None:
    with pytest.raises(GeometryError):
        ReductionPlan.from_numbers(numbers)


def test_an_order_that_is_none_is_refused() -> None:
    with pytest.raises(GeometryError, match="each rank from 0 once"):
        reduction(4, star, [0, 2])
    with pytest.raises(GeometryError, match="groups"):
        reduction(4, hierarchy([[0, 1]], [star]), [0, 1])


def test_plans_of_other_ranks_do_not_follow_each_other() -> None:
    with pytest.raises(GeometryError, match="consecutive plans"):
        ReductionPlan(2, 0, 4, ()).then(ReductionPlan(3, 0, 4, (Step(0, 1, 0, 0, 4),)))
