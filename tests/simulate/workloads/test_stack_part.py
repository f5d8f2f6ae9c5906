"""A rank's computation and messages for a stack, counted block by block and pixel by pixel."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import FUZZ
from tests.support.simulate.small_cases import cluster, works

from cotswold.geometry import Grid, StackPartition
from cotswold.simulate import StackWork
from cotswold.simulate.hardware.device import DeviceModel
from cotswold.simulate.timeline.actions import Post, Script
from cotswold.simulate.workloads.stack_part import StackPart

EXAMPLES = settings(max_examples=20 * FUZZ, deadline=None)
GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))


def part_of(work: StackWork, grid: Grid) -> StackPart:
    """Return the part of the lowest stack."""
    speed = DeviceModel(cluster().device, 1.0)
    return StackPart(StackPartition(work.stacks[0], grid), work.images, 4, speed, Script(grid.size))


@EXAMPLES
@given(works(), GRIDS)
def test_own_pixels_are_decoded_from_the_blocks_that_see_them(work: StackWork, grid: Grid) -> None:
    part = part_of(work, grid)
    layer = part.layer
    each = 2 * layer.input.channels * layer.neurons * work.images
    for rank, flops in enumerate(part.own_pixel_flops):
        own = set(part.cut.input.box(rank).points())
        pairs = 0
        for y, x in part.cut.blocks.box(rank).points():
            rows, columns = layer.y.reads(y, layer.input.height), layer.x.reads(x, layer.input.width)
            pairs += sum((i, j) in own for i in range(*rows) for j in range(*columns))
        assert flops == each * pairs


@EXAMPLES
@given(works(), GRIDS)
def test_blocks_that_need_nothing_from_others_are_computed_first(work: StackWork, grid: Grid) -> None:
    part = part_of(work, grid)
    layer, here = part.layer, part.cut.input.boxes
    for rank, flops in enumerate(part.inner_flops(here)):
        inner = 0
        for y, x in part.cut.blocks.box(rank).points():
            rows, columns = layer.y.reads(y, layer.input.height), layer.x.reads(x, layer.input.width)
            seen = [(i, j) for i in range(*rows) for j in range(*columns)]
            if set(seen) <= set(here[rank].points()):
                inner += len(seen)
        assert flops == 2 * layer.input.channels * layer.neurons * work.images * inner


@EXAMPLES
@given(works(), GRIDS)
def test_messages_go_to_whom_the_plans_say(work: StackWork, grid: Grid) -> None:
    part = part_of(work, grid)
    part.step(None, upstream=False, descend=False)
    units, pixels = part.unit_bytes, part.input_bytes
    plans = {
        "pooling": (part.cut.pooling, units),
        "decoded": (part.cut.pixels.adjoint, pixels),
        "residual": (part.cut.pixels, pixels),
        "slopes": (part.cut.pooling.adjoint, units),
    }
    for rank, program in enumerate(part.script.programs):
        sent = {each.exchange.split(": ")[1]: each.sends for each in program if isinstance(each, Post)}
        wanted = {
            name: tuple((one.target, one.box.size * point) for one in plan.sends(rank))
            for name, (plan, point) in plans.items()
        }
        assert sent == {name: sends for name, sends in wanted.items() if sends}
