"""The smallest shapes and efforts for trial measurements."""

from __future__ import annotations

import os

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.shapes import Shape
from cotswold.bench.measure import Rounds
from cotswold.bench.row import Row
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.simulate import StackWork

SMALLEST = Effort(Rounds(max_rounds=2), dense_size=32, process_starts=1)
LAYER = BlockLocal(MapShape(2, 9, 11), Window(4, 2), Window(3, 2, 1, 1), rows=2, columns=1, depth=3)
UNTIED = BlockLocal(MapShape(2, 7, 8), Window(3), Window(3), rows=1, columns=1, depth=5)


def small_stack() -> Shape:
    """Return a stack whose pooling and normalisation keep the map's size."""
    layer = BlockLocal(MapShape(2, 12, 12), Window(4, 2), Window(4, 2), 2, 2, 3)
    stack = StackGeometry(layer, Smoothing(3, keep=True), Smoothing(3, keep=True))
    return Shape("small", "recipe", layer, 4, stack)


def small_layer() -> Shape:
    """Return an ordinary untied layer."""
    return Shape("little", "untied", UNTIED, 4)


def tiny_work() -> StackWork:
    """Return two jointly trained stacks."""
    window, smoothing = Window(6, 2), Smoothing(3)
    first = StackGeometry(BlockLocal(MapShape(3, 20, 20), window, window, 2, 2, 4), smoothing, smoothing)
    second = StackGeometry(BlockLocal(first.output, Window(3), Window(3), 2, 2, 4), smoothing, Smoothing(1))
    return StackWork((first, second), 8, "joint")


def lethal(status: int, effort: Effort) -> list[Row]:
    """Crash instead of measuring."""
    os._exit(status)
