"""Networks of ordinary layers: parts cover every layer once, bytes agree with the plans, counts with the
papers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.conftest import FUZZ
from tests.support.simulate.small_cases import cluster

from cotswold.geometry import Grid, MapShape, Window
from cotswold.simulate import load_cluster, predict
from cotswold.simulate.workloads.layers import LayerGeometry, LayerKind, LayerWork
from cotswold.simulate.workloads.papers import adam, image_network, ladder, speech

EXAMPLES = settings(max_examples=30 * FUZZ, deadline=None)
GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))


@st.composite
def networks(draw: DrawFn) -> LayerWork:
    """Draw filters of either kind and pooling on a map, then full layers."""
    below = MapShape(draw(st.integers(1, 3)), draw(st.integers(6, 9)), draw(st.integers(6, 9)))
    kind: LayerKind = draw(st.sampled_from(["local", "shared", "convolution"]))
    y, x = Window(3, draw(st.integers(1, 2))), Window(2, draw(st.integers(1, 2)), 1, 1)
    block = (2, 1) if kind == "local" and draw(st.booleans()) else (1, 1)
    filters = LayerGeometry(kind, below, y, x, draw(st.integers(1, 4)), block)
    window = Window(2, draw(st.integers(1, 2)))
    pool = LayerGeometry("pool", filters.output, window, window, filters.maps)
    full = LayerGeometry.full(pool.output, draw(st.integers(1, 7)))
    return LayerWork((filters, pool, full, LayerGeometry.full(full.output, 5)), draw(st.integers(1, 3)))


@EXAMPLES
@given(networks(), GRIDS)
def test_ranks_compute_every_unit_once(work: LayerWork, grid: Grid) -> None:
    for layer, row in zip(work.layers, work.parts(grid), strict=True):
        units = [unit for part in row for unit in part.output_box.points()]
        assert len(units) == len(set(units)) == layer.output.size


@EXAMPLES
@given(networks(), GRIDS)
def test_flops_of_all_ranks_are_those_of_the_network(work: LayerWork, grid: Grid) -> None:
    for layer, row in zip(work.layers, work.parts(grid), strict=True):
        whole = 0 if layer.kind == "pool" else layer.plane.product_flops
        assert sum(part.flops for part in row) == whole


@EXAMPLES
@given(networks(), GRIDS)
def test_weights_of_all_ranks_are_those_of_the_network(work: LayerWork, grid: Grid) -> None:
    """Every rank that computes a convolution has all of its filters."""
    for layer, row in zip(work.layers, work.parts(grid), strict=True):
        copies = sum(part.output_box.size > 0 for part in row) if layer.kind == "convolution" else 1
        assert sum(part.weights for part in row) == copies * layer.weights


@EXAMPLES
@given(networks(), GRIDS)
def test_a_rank_receives_once_what_it_reads_and_does_not_have(work: LayerWork, grid: Grid) -> None:
    rows = work.parts(grid)
    missing = 0
    for below, above in pairwise(rows):
        shape = below[0].layer.output
        for own, part in zip(below, above, strict=True):
            if not part.output_box.size:
                continue
            read = shape.size if part.layer.kind == "full" else part.reads.size
            kept = (
                own.output_box.size
                if part.layer.kind == "full"
                else own.output_box.intersect(part.reads).size
            )
            missing += read - kept
    found = predict(cluster(hosts=9), work, grid)
    summed = sum(layer.weights for layer in work.layers if layer.kind == "convolution")
    gradients = 2 * (grid.size - 1) * summed * work.value_bytes
    # activations up, the sums of their gradients down
    assert found.wire_bytes == 2 * missing * work.images * work.value_bytes + gradients


def test_the_gradient_of_a_convolution_passes_between_all_hosts() -> None:
    layer = LayerGeometry("convolution", MapShape(64, 32, 32), Window(3, 1, 1, 1), Window(3, 1, 1, 1), 256)
    found = predict(load_cluster("ethernet"), LayerWork((layer,), 32), Grid(1, 16))
    assert found.wire_bytes == found.network_bytes == 2 * 15 * 4 * (64 * 9 * 256)


@EXAMPLES
@given(networks(), GRIDS)
def test_hosts_of_one_rank_send_each_other_everything(work: LayerWork, grid: Grid) -> None:
    found = predict(cluster(hosts=9), work, grid)
    assert found.network_bytes == found.wire_bytes


@EXAMPLES
@given(networks())
def test_one_rank_computes_what_the_network_counts(work: LayerWork) -> None:
    fast = cluster(hosts=1, device={"bandwidth": 1e12})
    found = predict(fast, work, Grid(1, 1))
    products = sum(found.operations.get(name, 0) for name in ("Wx", "W'x", "δx'"))
    assert products == pytest.approx(work.update_flops / 1e9)
    assert found.messages == 0


def test_the_ladder_has_the_papers_first_and_last_step_to_the_weight() -> None:
    counts = {name: work.parameters for name, work in ladder().items()}
    assert counts == {
        "180 M": 178_995_200,
        "680 M": 679_456_768,
        "1.8 B": 1_802_240_000,
        "3.0 B": 2_982_693_888,
        "6.9 B": 6_901_393_408,
        "11.2 B": 11_199_485_952,
    }
    assert {work.strategy for work in ladder().values()} == {"joint"}


def test_the_speech_network_has_the_papers_42_million_weights() -> None:
    assert speech(1).parameters == 440 * 2560 + 3 * 2560**2 + 2560 * 8192 == 41_758_720


def test_the_largest_image_network_rounds_to_the_papers_1_7_billion() -> None:
    assert image_network(36, 1).parameters == 1_654_851_600


def test_adams_network_has_the_papers_two_billion_connections() -> None:
    assert adam(1, 1).connections == 2_041_855_560
    assert [layer.output.channels for layer in adam(1, 1).layers if layer.kind == "shared"] == [
        120,
        380,
        400,
        500,
        600,
    ]


def test_large_networks_gain_more_of_many_machines_than_small_ones() -> None:
    """Figure 3 of Dean et al. 2012, in words."""
    described = load_cluster("dean2012")

    def gain(work: LayerWork) -> float:
        one, many = (predict(described, work, grid).seconds for grid in (Grid(1, 1), Grid(4, 4)))
        return one / many

    assert gain(speech(100)) < gain(image_network(8, 100)) < gain(image_network(36, 100))
