"""How long an update takes on this machine, from a short measurement of a small piece of it.

Knows: the operations of a stack and the clock. Does not know: recipes, the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, StackGeometry

PIECE_FLOPS = 2e9
"""A piece as large as about so many FLOPs is measured."""
BLOCKS_MOST = 8


def update_seconds(geometry: StackGeometry, batch: int) -> float:
    """Seconds of one update of a stack, scaled up from a few blocks of it with the same field, block and
    batch."""
    piece = _piece(geometry.filters, batch)
    filters = ops.random_filters(piece, 0, 0, torch.float32, torch.device("cpu"))
    x = ops.images_last(torch.randn(batch, piece.input.channels, piece.input.height, piece.input.width))
    y = ops.local_product(x, filters, piece)
    seconds = (
        2 * _least(lambda: ops.local_product(x, filters, piece))
        + _least(lambda: ops.local_adjoint(y, filters, piece))
        + 2 * _least(lambda: ops.local_outer(y, x, piece))
    )
    products = seconds * geometry.filters.product_flops / piece.product_flops
    # momentum, step and normalisation pass over the weights about four times
    passes = 4 * _least(lambda: filters.mul_(1.0)) * geometry.filters.parameters / piece.parameters
    return products + passes


def _piece(layer: BlockLocal, batch: int) -> BlockLocal:
    """The upper left corner of a layer: as many blocks as make a measurement of some length."""
    block = 2 * layer.fan_in * layer.neurons * batch
    blocks = int(max(1, min(BLOCKS_MOST**2, PIECE_FLOPS // block)))
    down = min(layer.grid[0], max(1, round(blocks**0.5)))
    across = min(layer.grid[1], max(1, blocks // down))
    height = layer.y.size + (down - 1) * layer.y.step
    width = layer.x.size + (across - 1) * layer.x.step
    return replace(
        layer,
        input=MapShape(layer.input.channels, height, width),
        y=replace(layer.y, low=0, high=0),
        x=replace(layer.x, low=0, high=0),
    )


def _least(action: Callable[[], object]) -> float:
    action()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
