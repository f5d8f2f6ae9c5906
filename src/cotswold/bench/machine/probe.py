"""An estimate of the time of an update on this machine, from a short measurement of a small piece.

Knows: the operations of a stack and the clock. Does not know: recipes, the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, StackGeometry

PIECE_FLOPS = 2e9
"""FLOPs of the piece that is measured, about."""
BLOCKS_MOST = 8
MAX_PIECE_BYTES = 1 << 26
"""Bytes of a piece's filters, if it has several blocks, and of its maps, at most."""
BLOCK_BYTES_MOST = 1 << 30
"""Bytes of a single block's filters, at most."""


@cache
def update_seconds(geometry: StackGeometry, batch: int) -> float | None:
    """Seconds of one update of a stack, scaled up from a few blocks with the same field and block.

    Uses the same batch if that is quick, otherwise a smaller one; None if one image on one block is too
    much.
    """
    layer = geometry.filters
    if 4 * layer.fan_in * layer.neurons > BLOCK_BYTES_MOST:
        return None
    piece = _piece(layer, batch)
    images = min(batch, _images(piece))
    if images == 0:
        return None
    filters = ops.random_filters(piece, 0, 0, torch.float32, torch.device("cpu"))
    x = ops.images_last(torch.randn(images, piece.input.channels, piece.input.height, piece.input.width))
    y = ops.local_product(x, filters, piece)
    seconds = (
        2 * _least(lambda: ops.local_product(x, filters, piece))
        + _least(lambda: ops.local_adjoint(y, filters, piece))
        + 2 * _least(lambda: ops.local_outer(y, x, piece))
    )
    products = seconds * geometry.filters.product_flops / piece.product_flops * batch / images
    # momentum, step and normalisation pass over the weights about four times
    passes = 4 * _least(lambda: filters.mul_(1.0)) * geometry.filters.parameters / piece.parameters
    return products + passes


def _piece(layer: BlockLocal, batch: int) -> BlockLocal:
    """The upper left corner of a layer: enough blocks for a measurement."""
    weights = layer.fan_in * layer.neurons
    blocks = int(
        max(1, min(BLOCKS_MOST**2, PIECE_FLOPS // (2 * weights * batch), MAX_PIECE_BYTES // (4 * weights)))
    )
    down = min(layer.grid[0], max(1, round(blocks**0.5)))
    across = min(layer.grid[1], max(1, blocks // down))
    # pixels between fields that do not touch are never read
    y, x = (
        replace(each, stride=min(each.stride, each.size), pad_before=0, pad_after=0)
        for each in (layer.y, layer.x)
    )
    height, width = y.size + (down - 1) * y.stride, x.size + (across - 1) * x.stride
    return replace(layer, input=MapShape(layer.input.channels, height, width), y=y, x=x)


def _images(piece: BlockLocal) -> int:
    """Images to measure, at most: some seconds of work, in bounded memory."""
    return min(
        2 * int(PIECE_FLOPS) // piece.product_flops,
        MAX_PIECE_BYTES // (4 * (piece.input.size + piece.output.size)),
    )


def _least(action: Callable[[], object]) -> float:
    action()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)
