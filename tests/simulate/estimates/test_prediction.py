"""Predictions agree with the plans, with arithmetic, and with known facts about clusters."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import FUZZ
from tests.support.simulate.small_cases import cluster, link, stack, works

from cotswold.errors import ClusterError
from cotswold.geometry import ExchangePlan, Grid, MapShape, Smoothing, StackPartition
from cotswold.mesh.ranks.short_messages import RANKS_MAX
from cotswold.recipe import load
from cotswold.simulate import (
    StackWork,
    choose_grid,
    fastest_grid,
    grids,
    load_cluster,
    predict,
    predicted_grids,
    stages,
    this_machine,
)
from cotswold.simulate.workloads.stacks import SCALARS_BYTES
from cotswold.simulate.workloads.work import layer_work, stack_work

EXAMPLES = settings(max_examples=30 * FUZZ, deadline=None)
GRIDS = st.builds(Grid, st.integers(1, 4), st.integers(1, 3))
WIDE = cluster(hosts=12)


def plan_bytes(work: StackWork, grid: Grid) -> int:
    """Return the bytes of an update, counted plan by plan like `mesh.stacks.step`."""
    parts = [StackPartition(stack, grid) for stack in work.stacks]
    value = work.images * work.value_bytes
    total = 0

    def entry(upper: int) -> int:
        if upper == 0:
            return 0
        plan = ExchangePlan(parts[upper - 1].output.boxes, parts[upper].windows)
        return plan.points * parts[upper].geometry.input.channels * value

    for index, part in enumerate(parts):
        units = part.geometry.responses.channels * value
        pixels = part.geometry.input.channels * value
        top, joint = index == len(parts) - 1, work.strategy == "joint"
        if not top:  # its output, for the stack above
            total += entry(index) + (part.pooling.points + part.normalisation.points) * units
        if not top and not joint:
            continue
        total += entry(index) + 2 * part.pooling.points * units + 2 * part.pixels.points * pixels
        if not top:
            total += 2 * part.normalisation.points * units
        if joint and index:
            descent = ExchangePlan(part.input.boxes, parts[index - 1].output.boxes)
            total += (part.pixels.points + descent.points) * pixels
        messages = grid.size if grid.size <= RANKS_MAX else 2  # times the other ranks
        total += messages * (grid.size - 1) * SCALARS_BYTES
    return total


@EXAMPLES
@given(works(), GRIDS)
def test_bytes_on_the_wire_are_those_of_the_plans(work: StackWork, grid: Grid) -> None:
    assert predict(WIDE, work, grid).wire_bytes == plan_bytes(work, grid)


@EXAMPLES
@given(works())
def test_one_rank_sends_and_awaits_nothing(work: StackWork) -> None:
    found = predict(WIDE, work, Grid(1, 1))
    assert (found.messages, found.wire_bytes, found.exposed_seconds, found.imbalance_seconds) == (0, 0, 0, 0)
    assert found.hidden_part is None


@EXAMPLES
@given(works(), GRIDS)
def test_an_update_takes_at_least_its_products_over_all_ranks(work: StackWork, grid: Grid) -> None:
    found = predict(WIDE, work, grid)
    assert found.seconds >= work.update_flops / 1e9 / grid.size
    products = sum(found.operations[name] for name in ("Wx", "W'x", "δx'"))
    # bandwidth is the bound of some small products
    assert products >= work.update_flops / 1e9 / grid.size * (1 - 1e-9)


@EXAMPLES
@given(works(), GRIDS)
def test_parts_add_up_to_the_whole(work: StackWork, grid: Grid) -> None:
    found = predict(cluster(hosts=3, devices=2), work, grid)
    parts = found.compute_seconds + found.exposed_seconds + found.imbalance_seconds
    assert parts == pytest.approx(found.seconds)
    assert sum(found.operations.values()) == pytest.approx(found.compute_seconds)


@EXAMPLES
@given(works(), GRIDS, st.floats(0.5, 64), st.floats(1.0, 8))
def test_faster_links_are_never_slower(work: StackWork, grid: Grid, gbits: float, times: float) -> None:
    slow, fast = (cluster(hosts=12, network=link(50, rate)) for rate in (gbits, gbits * times))
    assert predict(fast, work, grid).seconds <= predict(slow, work, grid).seconds * (1 + 1e-9)


@EXAMPLES
@given(works(), GRIDS, st.floats(1.0, 8))
def test_faster_memory_is_never_slower(work: StackWork, grid: Grid, times: float) -> None:
    fast = cluster(hosts=12, device={"bandwidth": times})
    assert predict(fast, work, grid).seconds <= predict(WIDE, work, grid).seconds * (1 + 1e-9)


@EXAMPLES
@given(works(), st.integers(1, 12))
def test_the_chosen_grid_is_the_fastest_of_all(work: StackWork, ranks: int) -> None:
    seconds = {grid: predict(WIDE, work, grid).seconds for grid in grids(ranks)}
    assert seconds[fastest_grid(WIDE, [work], ranks)] == min(seconds.values())


def test_of_equally_fast_grids_the_one_that_sends_least_is_chosen() -> None:
    free = cluster(hosts=8, network=link(0, 1e15), device={"bandwidth": 1e15})
    work = StackWork((stack(MapShape(1, 10, 10), 3, 1, 2, Smoothing(1)),), 1, "greedy")
    found = {grid: predict(free, work, grid) for grid in grids(4)}
    assert fastest_grid(free, [work], 4) == Grid(2, 2)
    assert found[Grid(2, 2)].wire_bytes < found[Grid(1, 4)].wire_bytes == found[Grid(4, 1)].wire_bytes


def test_a_working_set_that_fits_the_cache_runs_at_its_bandwidth() -> None:
    """Project Adam, section 3.2.4: with more ranks the part of each fits, and time falls faster than work."""
    fast = [{"operation": name, "rate": 1e6} for name in ("Wx", "W'x", "δx'")]
    work = StackWork((stack(MapShape(1, 32, 32), 8, 1, 8, Smoothing(1)),), 1, "greedy")
    whole = predict(cluster(hosts=4, network=link(0, 1e9)), work, Grid(1, 1))
    device = {"rates": fast, "cache_mb": whole.rank_bytes / 3e6, "cache_bandwidth": 100.0}
    cached = cluster(hosts=4, network=link(0, 1e9), device=device)
    one, four = (predict(cached, work, grid).seconds for grid in (Grid(1, 1), Grid(2, 2)))
    assert one / four > 20


def test_greedy_stages_learn_one_stack_each_and_joint_all_at_once() -> None:
    greedy, joint = (load("coates2013-11b", [f"training.strategy={name}"]) for name in ("greedy", "joint"))
    assert [stage.parameters for stage in stages(greedy)] == [731_289_600, 7_610_996_736, 11_199_485_952]
    together = stack_work(joint)
    assert stages(joint) == [together]
    products = [stack.filters.product_flops for stack in together.stacks]
    # five of a step; one forward for the stack above; one of the gradient for the stack below
    assert together.update_flops == 96 * (6 * products[0] + 7 * products[1] + 6 * products[2])


def test_the_published_rates_alone_give_the_products_of_a_gpu() -> None:
    """Stack 3 of the large network on one GPU: 5 products of 2 FLOPs per weight and image."""
    described, third = load_cluster("coates2013"), stages(load("coates2013-11b"))[-1]
    below = [2 * 96 * count / 885e9 for count in (731_289_600, 6_879_707_136)]
    own = 2 * 96 * 3_588_489_216
    found = predict(described, third, Grid(1, 1))
    launches = 3e-4
    assert found.operations["Wx"] == pytest.approx(sum(below) + 2 * own / 885e9, abs=launches)
    assert found.operations["W'x"] == pytest.approx(own / 808e9, abs=launches)
    assert found.operations["δx'"] == pytest.approx(2 * own / 702e9, abs=launches)
    assert not found.fits


def test_a_rank_holds_less_the_more_ranks_there_are() -> None:
    (first, *_) = stages(load("coates2013-1.8b"))
    held = [first.rank_bytes(Grid(side, side)) for side in (1, 2, 4, 8)]
    assert all(more > less for more, less in pairwise([inf, *held]))


def test_cost_follows_the_stated_price() -> None:
    priced = cluster(hosts=4, price={"host_dollars": 1000.0, "host_dollars_per_hour": 3.6})
    work = StackWork((stack(MapShape(1, 10, 10), 3, 1, 2, Smoothing(1)),), 2, "greedy")
    found = predict(priced, work, Grid(1, 2))
    assert found.dollars_per_thousand_updates == pytest.approx(found.seconds * 2)
    assert found.cents_per_mflops == pytest.approx(200_000 / (work.update_flops / found.seconds / 1e6))
    assert predict(WIDE, work, Grid(1, 2)).cents_per_mflops is None


def test_auto_chooses_for_every_stage_of_a_recipe() -> None:
    assert choose_grid(load_cluster("coates2013"), load("coates2013-1.8b"), 16) == Grid(4, 4)


def test_memory_counts_every_rank_of_a_device() -> None:
    work = StackWork((stack(MapShape(1, 16, 16), 3, 1, 4, Smoothing(1)),), 1, "greedy")
    needed = work.rank_bytes(Grid(1, 2))
    device = {"memory_gb": 1.5 * needed / 1e9}
    assert not predict(cluster(hosts=1, device=device), work, Grid(1, 2)).fits
    assert predict(cluster(hosts=2, device=device), work, Grid(1, 2)).fits


def test_fewer_ranks_than_cores_have_threads() -> None:
    work = StackWork((stack(MapShape(1, 32, 32), 8, 1, 8, Smoothing(1)),), 4, "greedy")
    fast = {"bandwidth": 1e12}
    one, threaded = (cluster(hosts=1, devices=4, device=fast, threads=part) for part in (None, 0.5))
    assert predict(one, work, Grid(1, 1)).seconds == 2.5 * predict(threaded, work, Grid(1, 1)).seconds
    assert predict(one, work, Grid(2, 2)).seconds == predict(threaded, work, Grid(2, 2)).seconds
    assert predict(threaded, work, Grid(1, 1)).efficiency == pytest.approx(2.5 / 4)


def test_devices_without_memory_of_their_own_share_the_hosts() -> None:
    work = StackWork((stack(MapShape(1, 16, 16), 3, 1, 4, Smoothing(1)),), 1, "greedy")
    one, two = (work.rank_bytes(Grid(1, count)) for count in (1, 2))
    assert two < one < 2 * two
    host = cluster(hosts=1, devices=2, host_memory_gb=(one + 1) / 1e9, device={"memory_gb": 1e-9})
    assert predict(host, work, Grid(1, 1)).fits
    assert not predict(host, work, Grid(1, 2)).fits


def test_a_rate_falls_where_all_devices_of_a_host_compute() -> None:
    rates = [{"operation": name, "rate": 4.0, "crowded": 1.0} for name in ("Wx", "W'x", "δx'")]
    device = {"rates": rates, "bandwidth": 1e12}
    work = StackWork((stack(MapShape(1, 32, 32), 8, 1, 8, Smoothing(1)),), 4, "greedy")
    alone, crowded = (cluster(hosts=4, devices=count, device=device) for count in (2, 1))
    products = ("Wx", "W'x", "δx'")
    fast = predict(alone, work, Grid(1, 1))
    assert sum(fast.operations[name] for name in products) == pytest.approx(work.update_flops / 4e9)
    slow = predict(alone, work, Grid(1, 2))
    assert sum(slow.operations[name] for name in products) == pytest.approx(work.update_flops / 2 / 1e9)
    assert predict(crowded, work, Grid(1, 1)).seconds == fast.seconds


def test_a_supervised_recipe_has_its_layers_and_ten_outputs() -> None:
    work = layer_work(load("cifar10"))
    assert work.layers[-1].kind == "full" and work.layers[-1].maps == 10
    assert work.images == load("cifar10").training.batch_size


def test_a_recipe_on_a_run_of_stacks_is_refused() -> None:
    with pytest.raises(ClusterError, match="builds on the stacks of a run"):
        layer_work(load("cifar10", ["network.backbone=runs/x"]))


def test_this_machine_chooses_a_grid_of_every_recipe_without_being_measured() -> None:
    for name in ("demo", "faces", "cifar10"):
        found = predicted_grids(this_machine(), load(name), [1, 2, 3])
        assert sorted(map(str, found)) == ["1x1", "1x2", "1x3", "2x1", "3x1"]
