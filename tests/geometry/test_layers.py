"""Block-local layers and stacks, compared with counts and with the numbers of the papers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window


@st.composite
def layers(draw: st.DrawFn) -> BlockLocal:
    sizes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = MapShape(draw(st.integers(1, 3)), draw(st.integers(4, 9)), draw(st.integers(4, 9)))
    y, x = (
        Window(size, draw(st.integers(1, 5)), draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1)))
        for size in sizes
    )
    return BlockLocal(shape, y, x, draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))


@given(layers())
def test_counts_equal_counting_one_by_one(layer: BlockLocal) -> None:
    weights = products = 0
    for by in range(layer.grid[0]):
        for bx in range(layer.grid[1]):
            for fy in range(layer.y.size):
                for fx in range(layer.x.size):
                    y, x = (
                        by * layer.y.stride - layer.y.pad_before + fy,
                        bx * layer.x.stride - layer.x.pad_before + fx,
                    )
                    here = layer.input.channels * layer.rows * layer.columns * layer.depth
                    weights += here
                    products += here * (0 <= y < layer.input.height and 0 <= x < layer.input.width)
    assert layer.parameters == weights
    assert layer.product_flops == 2 * products
    assert layer.output.size == layer.grid[0] * layer.grid[1] * layer.neurons
    assert layer.fan_in == layer.filters_shape[2] * layer.filters_shape[3]


@given(st.integers(1, 6), st.booleans(), st.integers(1, 9), st.integers(1, 9))
def test_a_smoothing_either_keeps_the_map_or_takes_a_window_less_one_off(
    size: int, keep: bool, height: int, width: int
) -> None:
    smoothing, shape = Smoothing(size, keep), MapShape(2, height, width)
    if keep:
        assert smoothing.output(shape) == shape
    elif size > min(height, width):
        with pytest.raises(GeometryError, match="does not fit"):
            smoothing.output(shape)
    else:
        assert smoothing.output(shape) == MapShape(2, height - size + 1, width - size + 1)


def coates(padding: int, keep: bool, fields: list[int], maps: int) -> list[StackGeometry]:
    """Return three stacks of Coates et al. 2013 on 200 x 200 x 3."""
    below, stacks = MapShape(3, 200, 200), []
    for field in fields:
        window = Window(field, 4, padding, padding)
        padding = 0  # the image alone is padded
        filters = BlockLocal(below, window, window, rows=4, columns=4, depth=maps)
        stacks.append(StackGeometry(filters, Smoothing(5, keep), Smoothing(5, keep)))
        below = stacks[-1].output
    return stacks


def test_the_large_network_of_the_paper_has_its_published_number_of_weights() -> None:
    stacks = coates(padding=0, keep=False, fields=[20, 32, 32], maps=18)
    assert [stack.filters.grid for stack in stacks] == [(46, 46), (36, 36), (26, 26)]
    assert sum(stack.filters.parameters for stack in stacks) == 11_199_485_952


def test_the_small_network_of_the_paper_has_its_published_number_of_weights() -> None:
    stacks = coates(padding=4, keep=True, fields=[20, 20, 20], maps=8)
    assert [stack.filters.grid for stack in stacks] == [(48, 48), (44, 44), (40, 40)]
    assert sum(stack.filters.parameters for stack in stacks) == 1_802_240_000


def test_a_window_of_one_normalises_nothing_and_keeps_the_map() -> None:
    filters = BlockLocal(MapShape(1, 6, 6), Window(3), Window(3), 1, 1, 1)
    stack = StackGeometry(filters, Smoothing(1), Smoothing(1))
    assert stack.output == stack.pooled == stack.responses == filters.output
    assert stack.forward_flops == filters.product_flops
    assert stack.update_flops == 5 * filters.product_flops


def test_a_field_larger_than_its_map_is_refused_with_both_sizes() -> None:
    with pytest.raises(GeometryError, match="field 7 wide does not fit a map 6 wide"):
        BlockLocal(MapShape(1, 8, 6), Window(7), Window(7), 1, 1, 1)


@pytest.mark.parametrize("rows", [0, -1])
def test_empty_blocks_and_maps_are_refused(rows: int) -> None:
    with pytest.raises(GeometryError, match="must be at least 1"):
        BlockLocal(MapShape(1, 6, 6), Window(3), Window(3), rows, 1, 1)
    with pytest.raises(GeometryError, match="must be at least 1"):
        MapShape(1, rows, 6)


@given(layers(), st.data())
def test_rows_of_blocks_see_what_they_see_in_the_whole_layer(layer: BlockLocal, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, layer.grid[0] - 1))
    stop = data.draw(st.integers(first + 1, layer.grid[0]))
    part, (top, bottom) = layer.block_rows(first, stop)
    assert part.grid == (stop - first, layer.grid[1])
    assert part.input.height == bottom - top
    for block in range(first, stop):
        whole = layer.y.reads(block, layer.input.height)
        seen = part.y.reads(block - first, part.input.height)
        assert (seen[0] + top, seen[1] + top) == whole
        skipped = part.y.padding_read(block - first, part.input.height)
        assert skipped == layer.y.padding_read(block, layer.input.height)
