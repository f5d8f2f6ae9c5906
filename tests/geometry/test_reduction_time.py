"""Predicted times of reductions, compared with results that need no model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import Host, Network, NetworkCard, best_all_reduce, best_plan
from cotswold.geometry.reduction_plans import binomial_tree, chain, reduction, star
from cotswold.geometry.reduction_time import bound_seconds, candidates, predicted_seconds, remove_ranks

COUNT = 1_000_000
RATE = 100_000_000
NEIGHBOURING = [(0, 1), (2, 3), (4, 5), (6, 7)]
INTERLEAVED = [(0, 4), (1, 5), (2, 6), (3, 7)]


def network(
    hosts: Sequence[tuple[int, ...]], cards: tuple[NetworkCard, ...] = (NetworkCard(0, RATE),)
) -> Network:
    return Network(tuple(Host(ranks, cards) for ranks in hosts))


def single(ranks: int) -> Network:
    return network([(rank,) for rank in range(ranks)])


def test_a_chain_of_whole_vectors_takes_a_vector_a_hop_and_one_of_pieces_hardly_more_than_one() -> None:
    plan, hosts = reduction(COUNT, chain, range(5)), single(5)
    bound = bound_seconds(hosts, 0, 4 * COUNT)
    assert bound == pytest.approx(0.32)
    assert predicted_seconds(plan, hosts, 4, pieces=1) == pytest.approx(4 * bound, rel=0.05)
    assert predicted_seconds(plan, hosts, 4, pieces=100) == pytest.approx(bound * 1.03, rel=0.05)


def test_a_binomial_tree_takes_a_vector_a_stage_and_a_star_one_a_rank() -> None:
    hosts = single(8)
    bound = bound_seconds(hosts, 0, 4 * COUNT)
    tree = reduction(COUNT, binomial_tree, range(8))
    assert predicted_seconds(tree, hosts, 4, pieces=1) == pytest.approx(3 * bound, rel=0.05)
    assert predicted_seconds(reduction(COUNT, star, range(8)), hosts, 4) == pytest.approx(7 * bound, rel=0.05)


@pytest.mark.parametrize("hosts", [NEIGHBOURING, INTERLEAVED])
@pytest.mark.parametrize("root", [0, 5])
def test_over_four_hosts_the_choice_is_within_the_bar_however_ranks_are_numbered(
    hosts: Sequence[tuple[int, ...]], root: int
) -> None:
    described = network(hosts)
    name, plan = best_plan(described, COUNT, 4, root)
    assert name == "chain over hosts" and plan.root == root
    tree = candidates(described, COUNT, root)["binomial tree over all ranks"]
    took = predicted_seconds(plan, described, 4)
    assert took < 1.1 * bound_seconds(described, root, 4 * COUNT)
    assert predicted_seconds(tree, described, 4, pieces=1) > 1.73 * took


def test_a_short_vector_is_not_sent_along_a_chain() -> None:
    name, plan = best_plan(single(16), 8, 4, 0)
    along = candidates(single(16), 8, 0)["chain over hosts"]
    assert not name.startswith("chain")
    assert predicted_seconds(plan, single(16), 4) < predicted_seconds(along, single(16), 4) / 2


def test_two_cards_halve_the_time() -> None:
    one, two = network(NEIGHBOURING), network(NEIGHBOURING, (NetworkCard(0, RATE), NetworkCard(1, RATE)))
    name, plan = best_plan(two, COUNT, 4, 0)
    assert name.endswith("over hosts, all cards") and plan.lanes == 2
    before = predicted_seconds(best_plan(one, COUNT, 4, 0)[1], one, 4)
    assert predicted_seconds(plan, two, 4) == pytest.approx(before / 2, rel=0.08)


def test_a_slow_link_between_switches_is_crossed_once() -> None:
    hosts = tuple(Host((rank,), (NetworkCard(rank % 2, RATE),)) for rank in range(8))
    slow = Network(hosts, {0: RATE // 10, 1: RATE // 10})
    name, plan = best_plan(slow, COUNT, 4, 0)
    assert "switches" in name
    crossings = [step for step in plan.steps if step.sender % 2 > step.receiver % 2]
    assert sum(step.end - step.begin for step in crossings) == COUNT
    assert predicted_seconds(plan, slow, 4) < 1.1 * 8 * 4 * COUNT / (RATE // 10)


def test_a_sum_for_all_goes_around_a_ring() -> None:
    hosts = network(NEIGHBOURING)
    name, plan = best_all_reduce(hosts, COUNT, 4)
    assert name == "ring over hosts, twice around" and plan.root is None
    assert predicted_seconds(plan, hosts, 4) < 1.7 * bound_seconds(hosts, 0, 4 * COUNT)


def test_one_rank_has_nothing_to_send() -> None:
    _, plan = best_plan(single(1), COUNT, 4, 0)
    assert plan.steps == () and predicted_seconds(plan, single(1), 4) == 0


def test_without_those_that_are_gone_ranks_are_numbered_anew() -> None:
    left, numbers = remove_ranks(network(INTERLEAVED), [1, 5, 6])
    assert numbers == [0, 2, 3, 4, 7] and left.ranks == 5
    assert [host.ranks for host in left.hosts] == [(0, 3), (1,), (2, 4)]
    assert best_plan(left, COUNT, 4, 0)[1].ranks == 5


def test_hosts_without_a_way_to_each_other_and_networks_that_are_none_are_refused() -> None:
    apart = Network((Host((0,), (NetworkCard(0, RATE),)), Host((1,), (NetworkCard(1, RATE),))))
    with pytest.raises(GeometryError, match="not connected"):
        best_plan(apart, COUNT, 4, 0)
    broken: list[list[tuple[int, ...]]] = [[], [(0, 2)], [(0, 0)]]
    for hosts in broken:
        with pytest.raises(GeometryError, match="ranks 0 to n - 1"):
            network(hosts)
    with pytest.raises(GeometryError, match="does not fit"):
        predicted_seconds(reduction(COUNT, chain, range(3)), single(4), 4)
    with pytest.raises(GeometryError, match="root must be a rank"):
        best_plan(single(2), COUNT, 4, 2)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    count=st.integers(0, 3_000_000),
    rate=st.sampled_from([10**7, 10**9, 10**11]),
)
def test_the_choice_is_the_least_prediction_of_all_and_never_below_the_bound(
    sizes: list[int], count: int, rate: int
) -> None:
    numbers = iter(range(sum(sizes)))
    described = network(
        [tuple(next(numbers) for _ in range(size)) for size in sizes], (NetworkCard(0, rate),)
    )
    predictions = {
        name: predicted_seconds(plan, described, 4) for name, plan in candidates(described, count, 0).items()
    }
    name, plan = best_plan(described, count, 4, 0)
    assert predictions[name] == predicted_seconds(plan, described, 4) == min(predictions.values())
    assert min(predictions.values()) >= bound_seconds(described, 0, 4 * count) * (1 - 1e-9)
