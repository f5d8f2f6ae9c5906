"""Plans are made once for a layer and all batch sizes, by steps whose number does not depend on the grid."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.microkernels.job import TASK
from cotswold.kernels.microkernels.kinds import Tile
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products import plans
from cotswold.kernels.products.plan import Blocking, GemmPlan

PLANS = [plans.product_plan, plans.small_batch_plan, plans.adjoint_plan, plans.outer_plan, plans.step_plan]
BLOCKING = Blocking(Tile(8, 3), 16, 1)


def layer_on(side: int) -> BlockLocal:
    return BlockLocal(MapShape(4, side, side), Window(5), Window(5), 1, 1, 8)


def dense(shape: MapShape, images: int) -> MapStrides:
    return MapStrides(images, shape.channels * images, shape.width * shape.channels * images)


def made(make: Callable[..., GemmPlan], layer: BlockLocal, images: int) -> GemmPlan:
    return make(layer, images, dense(layer.input, images), dense(layer.output, images), BLOCKING)


def lines_run(call: Callable[[], object]) -> int:
    """Count the lines of the package's Python code that a call runs."""
    found = 0

    def note(frame: FrameType, event: str, _: object) -> Any:
        nonlocal found
        found += event == "line" and "cotswold" in frame.f_code.co_filename
        return note

    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
    return found


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    plans.LAYER_PLANS.clear()


@pytest.mark.parametrize("make", PLANS)
def test_a_larger_grid_takes_no_more_python(make: Callable[..., GemmPlan]) -> None:
    small, large = layer_on(40), layer_on(128)
    first = lines_run(lambda: made(make, small, 8))
    assert 0 < lines_run(lambda: made(make, large, 8)) <= first * 1.1 < 20_000


@pytest.mark.parametrize("make", PLANS)
def test_another_batch_size_scales_the_tables_of_the_first(make: Callable[..., GemmPlan]) -> None:
    layer = layer_on(24)
    made(make, layer, 12)
    kept = dict(plans.LAYER_PLANS)
    assert lines_run(lambda: made(make, layer, 7)) < 120
    scaled = made(make, layer, 7)
    assert dict(plans.LAYER_PLANS) == kept
    plans.LAYER_PLANS.clear()
    alone = made(make, layer, 7)
    for name in ("tasks", "entries", "row_tiles", "lane_tiles", "offsets"):
        assert np.array_equal(getattr(scaled, name), getattr(alone, name)), name
    assert (scaled.k_block, scaled.scratch_size) == (alone.k_block, alone.scratch_size)


def test_rows_at_any_distance_have_plans() -> None:
    layer, images = layer_on(9), 6
    x, y = dense(layer.input, images), dense(layer.output, images)
    apart = MapStrides(x.channel, x.column, x.row + 1)  # no multiple of the channel's stride
    plan = plans.product_plan(layer, images, apart, y, BLOCKING)
    even = plans.product_plan(layer, images, x, y, BLOCKING)
    rows, columns = np.divmod(np.arange(25), 5)
    order, other = (np.argsort(one.tasks[:, TASK["c"]]) for one in (plan, even))
    assert plan.tasks[order, TASK["b"]].tolist() == (rows * apart.row + columns * apart.column).tolist()
    assert even.tasks[other, TASK["b"]].tolist() == (rows * x.row + columns * x.column).tolist()
