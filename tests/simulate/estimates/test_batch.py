"""Predicted evaluations of strategy batch agree with arithmetic, with plans, and with the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import FUZZ
from tests.support.simulate.small_cases import cluster, link

from cotswold.errors import ClusterError
from cotswold.recipe import load
from cotswold.simulate import BatchWork, batch_work, load_cluster, predict_evaluation
from cotswold.simulate.estimates.batch_network import batch_network, switch_between
from cotswold.simulate.estimates.bunyip import dense_work
from cotswold.simulate.workloads.batch_work import PointTransfer

TRAVELS: tuple[PointTransfer, ...] = ("bunyip", "sandblaster")
VECTOR = 4 * (8 * 4 + 4 + 4 * 2 + 2)
SMALL = dense_work((8, 4, 2), samples=1000, portion=10)
BUNYIP = "bunyip-japanese-ocr"


def gradient(rate: float, **more: float) -> dict[str, object]:
    """Return a device with known rates of whole portions and of products."""
    rates: list[dict[str, object]] = [{"operation": name, "rate": 1.0} for name in ("Wx", "W'x", "δx'")]
    return {"rates": [*rates, {"operation": "gradient", "rate": rate, **more}]}


def test_flops_and_parameters_are_those_of_the_paper() -> None:
    work = dense_work((400, 480, 3203), samples=9_264_000, portion=320)
    assert work.flops == 9_264_000 * (4 * 400 * 480 + 6 * 480 * 3203)  # 92 Tera, section 6.2
    assert replace(work, biases=False).parameters == 1_729_440


def test_a_recipe_counts_what_is_trained() -> None:
    from cotswold.training.models import planned_layers

    recipe = load(BUNYIP)
    work = batch_work(recipe, 1000, 3203)
    assert work.parameters == sum(plan.parameters for plan in planned_layers(recipe, 3203))
    assert (work.portion, work.sample_fraction, work.point_transfer) == (320, 0.1, "sandblaster")
    assert work.evaluated_samples == 320  # one portion of 320: at least a tenth


@pytest.mark.parametrize("travel", TRAVELS)
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_parts_add_up_and_bytes_are_those_of_vectors(travel: PointTransfer, workers: int) -> None:
    found = predict_evaluation(cluster(hosts=7), replace(SMALL, point_transfer=travel), workers)
    assert found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.flops_per_second == pytest.approx(found.flops / found.seconds)
    # a broadcast and a sum over the workers, and both ways to the servers; or both ways of each worker, with
    # a push every eight of its portions
    pushes = -(-(100 // workers) // 8)
    expected = 2 * (workers - 1) + 2 if travel == "bunyip" else workers * (1 + pushes)
    assert found.wire_bytes == (expected * VECTOR if workers > 1 else 0)


def test_portions_go_to_free_workers() -> None:
    portion = 10 * SMALL.sample_flops / 1e9
    assert predict_evaluation(cluster(device=gradient(1.0)), SMALL, 2).parts["portions"] == pytest.approx(
        50 * portion
    )
    thirds = predict_evaluation(cluster(hosts=3, device=gradient(1.0)), SMALL, 3)
    assert thirds.parts["portions"] == pytest.approx(34 * portion)  # 100 portions: 34, 33, 33
    assert thirds.computing_fraction == pytest.approx(100 / 3 * portion / thirds.seconds)
    odd = replace(SMALL, samples=13)  # the worker with the last portion has three samples
    assert predict_evaluation(cluster(device=gradient(1.0)), odd, 2).parts["portions"] == pytest.approx(
        portion
    )


def test_a_measured_rate_stands_for_the_products() -> None:
    by_products = predict_evaluation(cluster(), SMALL, 1).parts["portions"]
    fast = predict_evaluation(cluster(device=gradient(1000.0)), SMALL, 1).parts["portions"]
    assert by_products >= SMALL.flops / 1e9 > 900 * fast
    crowded = cluster(hosts=1, devices=2, device=gradient(1.0, crowded=0.5))
    alone, both = (predict_evaluation(crowded, SMALL, count).parts["portions"] for count in (1, 2))
    assert both == pytest.approx(alone)  # two at half the speed


def test_the_point_travels_once_a_direction_or_each_time() -> None:
    far = cluster(hosts=3, network=link(gbits=0.001))
    bunyip = predict_evaluation(far, replace(SMALL, point_transfer="bunyip"), 3)
    assert bunyip.repeated_seconds == pytest.approx(bunyip.seconds - bunyip.parts["point"])
    assert bunyip.repeated_seconds < bunyip.seconds
    sandblaster = predict_evaluation(far, replace(SMALL, point_transfer="sandblaster"), 3)
    assert sandblaster.repeated_seconds == sandblaster.seconds


def test_a_card_carries_one_vector_after_the_other() -> None:
    slow = cluster(hosts=4, network=link(gbits=0.001))
    found = predict_evaluation(slow, replace(SMALL, point_transfer="sandblaster", samples=40), 4)
    vector = 8 * VECTOR / 1e6
    # three workers pull from the first host, and push to it; the fourth is on it
    assert found.parts["point"] == pytest.approx(3 * vector, rel=0.1)
    assert found.parts["sum"] == pytest.approx(3 * vector, rel=0.1)
    assert found.network_bytes == 6 * VECTOR


def test_more_servers_on_the_same_host_bring_no_faster_card() -> None:
    slow = cluster(hosts=4, network=link(gbits=0.001))
    one, two = (
        predict_evaluation(slow, replace(SMALL, point_transfer="sandblaster", servers=n), 4).parts["point"]
        for n in (1, 2)
    )
    assert two == pytest.approx(one, rel=0.1)


@settings(max_examples=20 * FUZZ, deadline=None)
@given(st.integers(2, 9), st.integers(1, 400), st.sampled_from(TRAVELS))
def test_no_evaluation_is_faster_than_its_arithmetic(
    workers: int, samples: int, travel: PointTransfer
) -> None:
    found = predict_evaluation(
        cluster(hosts=9), replace(SMALL, samples=samples, point_transfer=travel), workers
    )
    assert found.computing_fraction <= 1 and found.seconds > 0
    assert found.seconds >= found.flops / (workers * 1e9)
    assert 0 < found.repeated_seconds <= found.seconds


def test_bunyip_stands_as_its_paper_says() -> None:
    machine = load_cluster("bunyip2000")
    network = batch_network(machine, 194, 0).among_workers
    server, *nodes = network.hosts
    assert len(nodes) == 96 and all(len(node.ranks) == 2 and len(node.cards) == 3 for node in nodes)
    assert {card.bits_per_second for node in nodes for card in node.cards} == {100_000_000}
    # every switch joins 24 nodes of one group with 24 of another
    for switch in range(6):
        assert sum(switch in {card.switch for card in node.cards} for node in nodes) == 48
    assert server.ranks == (0, 1) and {card.bits_per_second for card in server.cards} == {10**9}
    reached = {card.switch for card in server.cards}
    assert all(reached & {card.switch for card in node.cards} for node in nodes)
    assert switch_between(machine, 1, 0) == switch_between(machine, 0, 1) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups": {"hosts": 2}, "hosts": 5}, "groups.hosts is 2 for 5 hosts"),
        ({"groups": {"hosts": 4}, "hosts": 4}, "groups.hosts is 4 for 4 hosts"),
        ({"server": {"gbits": 1.0, "switches": [[0, 1]]}}, "describe \\[groups\\]"),
        ({"groups": {"hosts": 1}, "server": {"gbits": 1.0, "switches": [[0, 2]]}}, "name two of the groups"),
        ({"groups": {"hosts": 1}, "server": {"gbits": 1.0, "switches": [[0, 0]]}}, "name two of the groups"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cluster(**changes)  # type: ignore[arg-type]  # hosts among them


def test_what_cannot_be_predicted_is_refused() -> None:
    with pytest.raises(ClusterError, match="workers must be at least 1, got 0"):
        predict_evaluation(cluster(), SMALL, 0)
    with pytest.raises(ClusterError, match="use fewer ranks"):
        predict_evaluation(cluster(hosts=300), SMALL, 300)
    with pytest.raises(ClusterError, match="evaluations need strategy batch"):
        batch_work(load("faces"), 10, 10)
    with pytest.raises(ClusterError, match="samples and outputs must be at least 1"):
        batch_work(load(BUNYIP), 0, 10)


def test_memory_is_a_workers_vectors_and_its_share() -> None:
    work = BatchWork(SMALL.layers, 1000, point_transfer="bunyip", sample_bytes=1_000_000)
    assert predict_evaluation(cluster(), work, 2).worker_bytes > 500_000_000
    assert predict_evaluation(cluster(), work, 2).fits
    assert not predict_evaluation(cluster(), replace(work, samples=2002), 1).fits
