"""The memory layout of maps: images last.

Knows: the memory order ``[y][x][channel][image]`` of a logical ``(image, channel, y, x)`` tensor, the order
of neurons in a block. Does not know: what is computed from a map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape


def empty_map(like: Tensor, images: int, shape: MapShape, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised map ``(image, channel, y, x)``, images last, on the device of ``like``."""
    channel = max(images, 1)
    column, row = shape.channels * channel, shape.width * shape.channels * channel
    # not a view: torch forbids in-place changes of a view that an autograd.Function returned
    size, strides = (images, shape.channels, shape.height, shape.width), (1, channel, row, column)
    return like.new_empty_strided(size, strides, dtype=dtype)


def neurons_to_map(values: Tensor, layer: BlockLocal) -> Tensor:
    """Arrange one value per neuron ``(block_y, block_x, neuron)`` as a map ``(depth, y, x)``."""
    down, across = values.shape[:2]
    spread = values.reshape(down, across, layer.rows, layer.columns, layer.depth).permute(4, 0, 2, 1, 3)
    return spread.reshape(layer.depth, down * layer.rows, across * layer.columns)
