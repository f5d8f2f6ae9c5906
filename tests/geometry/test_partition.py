"""Partitions of planes, and of stacks, over grids of ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import (
    BlockLocal,
    Box,
    Grid,
    MapShape,
    Partition,
    Smoothing,
    StackGeometry,
    StackPartition,
    Window,
)
from cotswold.geometry.partition import chunk_bounds, midpoint_bounds, output_bounds

grids = st.builds(Grid, st.integers(1, 4), st.integers(1, 4))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    size = draw(st.integers(1, 5))
    low, high = (draw(st.integers(0, size - 1)) for _ in range(2))
    return Window(size, draw(st.integers(1, 4)), low, high)


@st.composite
def stacks(draw: st.DrawFn) -> StackGeometry:
    """Draw stacks of any windows on maps that are often smaller than the grid."""
    shape = MapShape(draw(st.integers(1, 2)), draw(st.integers(1, 14)), draw(st.integers(1, 14)))
    block = [draw(st.integers(1, 3)) for _ in range(3)]
    smoothings = [Smoothing(draw(st.integers(1, 4)), draw(st.booleans())) for _ in range(2)]
    try:
        stack = StackGeometry(BlockLocal(shape, draw(windows()), draw(windows()), *block), *smoothings)
        stack.output
    except GeometryError:
        assume(False)
    return stack


def _cover(boxes: tuple[Box, ...], height: int, width: int) -> bool:
    points = [point for box in boxes for point in box.points()]
    return sorted(points) == [(y, x) for y in range(height) for x in range(width)]


@settings(max_examples=1000, deadline=None)
@given(st.integers(1, 60), st.integers(1, 9))
def test_even_cuts_are_those_of_torch_chunk(extent: int, parts: int) -> None:
    share = -(-extent // parts)
    sizes = [b - a for a, b in pairwise(chunk_bounds(extent, parts))]
    assert sum(sizes) == extent and len(sizes) == parts
    assert all(size in (share, 0) or at == extent // share for at, size in enumerate(sizes))


@settings(max_examples=1000, deadline=None)
@given(grids, st.integers(1, 9), st.integers(1, 9))
def test_parts_of_a_plane_cover_it_once(grid: Grid, height: int, width: int) -> None:
    assert _cover(Partition.even((height, width), grid).boxes, height, width)


@settings(max_examples=1000, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), windows())
def test_cuts_that_follow_others_give_each_output_to_one_rank(
    extent: int, parts: int, window: Window
) -> None:
    outputs = window.outputs(extent)
    assume(outputs)

    def reads(output: int) -> tuple[int, int]:
        first = output * window.stride - window.pad_before
        return first, first + window.size

    below = chunk_bounds(extent, parts)
    found = output_bounds(below, outputs, reads)
    assert found[0] == 0 and found[-1] == outputs and list(found) == sorted(found)
    for rank, (first, stop) in enumerate(pairwise(found)):
        for output in range(first, stop):
            middle = min(max(sum(reads(output)) / 2, 0), extent - 0.5)
            assert below[rank] <= middle < below[rank + 1]


@settings(max_examples=1000, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), windows())
def test_cuts_amid_windows_cover_the_axis(extent: int, parts: int, window: Window) -> None:
    outputs = window.outputs(extent)
    assume(outputs)
    seen = [
        (window.reads(a, extent)[0], window.reads(b - 1, extent)[1]) if b > a else (0, 0)
        for a, b in pairwise(chunk_bounds(outputs, parts))
    ]
    found = midpoint_bounds(seen, extent)
    assert found[0] == 0 and found[-1] == extent and list(found) == sorted(found)
    assert all(a == b for (a, b), (first, stop) in zip(pairwise(found), seen, strict=True) if first == stop)


@settings(max_examples=500, deadline=None)
@given(stacks(), grids)
def test_the_parts_of_every_map_of_a_stack_cover_it_once(stack: StackGeometry, grid: Grid) -> None:
    cut = StackPartition(stack, grid)
    assert _cover(cut.blocks.boxes, *stack.filters.grid)
    for part, shape in (
        (cut.input, stack.input),
        (cut.responses, stack.responses),
        (cut.pooled, stack.pooled),
        (cut.output, stack.output),
    ):
        assert _cover(part.boxes, shape.height, shape.width)


@settings(max_examples=500, deadline=None)
@given(stacks(), grids)
def test_a_rank_of_a_stack_holds_what_its_blocks_see_and_its_own_pixels(
    stack: StackGeometry, grid: Grid
) -> None:
    cut, filters = StackPartition(stack, grid), stack.filters
    for blocks, own, window in zip(cut.blocks.boxes, cut.input.boxes, cut.windows, strict=True):
        seen = {
            (y, x)
            for row, column in blocks.points()
            for y in range(*filters.y.reads(row, filters.input.height))
            for x in range(*filters.x.reads(column, filters.input.width))
        }
        for axis in (0, 1):
            needed = {point[axis] for point in seen}
            if seen:
                needed |= set(range(own.start[axis], own.stop[axis]))
                assert (min(needed), max(needed) + 1) == (window.start[axis], window.stop[axis])


@settings(max_examples=500, deadline=None)
@given(stacks(), grids)
def test_plans_of_a_stack_join_the_parts_of_one_map_to_windows_of_the_next(
    stack: StackGeometry, grid: Grid
) -> None:
    cut = StackPartition(stack, grid)
    assert cut.pixels.writes == cut.input.boxes and cut.pixels.reads == cut.windows
    assert cut.pooling.writes == cut.responses.boxes
    assert cut.normalisation.writes == cut.pooled.boxes
    window, shape = stack.pool.window, stack.responses
    for units, read in zip(cut.pooled.boxes, cut.pooling.reads, strict=True):
        seen = {
            (y, x)
            for row, column in units.points()
            for y in range(*window.reads(row, shape.height))
            for x in range(*window.reads(column, shape.width))
        }
        assert seen <= set(read.points())


@pytest.mark.parametrize("text", ["", "2", "2x", "x2", "0x2", "2x2x2", "-1x2", "2,2"])
def test_what_is_no_grid_is_refused(text: str) -> None:
    with pytest.raises(GeometryError, match="grid"):
        Grid.parse(text)


@pytest.mark.parametrize("cuts", [(0,), (1, 2), (0, 3, 2)])
def test_cuts_that_do_not_rise_from_0_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(GeometryError, match="cuts"):
        Partition(cuts, (0, 1))
