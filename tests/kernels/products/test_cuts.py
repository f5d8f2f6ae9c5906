from __future__ import annotations

import pytest

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.microkernels.kinds import Tile
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.plan import Blocking
from cotswold.kernels.products.plans import outer_plan, step_plan


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("neurons", [3, 16, 32, 64, 128, 250, 256])
def test_rows_in_scratch_are_an_odd_number_of_lines_apart(neurons: int, lanes: int) -> None:
    layer = BlockLocal(MapShape(3, 6, 6), Window(4, 2), Window(4, 2), rows=1, columns=1, depth=neurons)
    strides = MapStrides(6 * 3 * 40, 3 * 40, 40)
    for plan in (outer_plan, step_plan):
        made = plan(layer, 40, strides, strides, Blocking(Tile(6, 2), lanes, 1))
        lines, beside = divmod(made.scratch_pitch, 16)
        assert beside == 0 and lines % 2 == 1
        assert neurons <= made.scratch_pitch < neurons + 32
