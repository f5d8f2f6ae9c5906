"""The layout of maps: images last.

Knows: how a logical ``(image, channel, y, x)`` tensor lies in memory as ``[y][x][channel][image]``, with a
pitch between channels and between rows. Knows the order of neurons in a block. Does
not know: what is computed from a map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape


@dataclass(frozen=True)
class Pitch:
    """Elements between neighbouring channels and between neighbouring rows of an images-last map."""

    channel: int
    row: int


def pitch_of(x: Tensor) -> Pitch | None:
    """The pitches of a map whose images are last, or None where its strides are others.

    Strides of dimensions with one element say nothing and are not asked.
    """
    images, channels, height, width = x.shape
    image_stride, channel_stride, row_stride, column_stride = x.stride()
    if images > 1 and image_stride != 1:
        return None
    if channels > 1:
        channel = channel_stride
    elif width > 1:
        channel = column_stride
    else:
        channel = max(images, 1)
    row = row_stride if height > 1 else width * channels * channel
    dense = channel >= max(images, 1) and row >= width * channels * channel
    aligned = width == 1 or column_stride == channels * channel
    return Pitch(channel, row) if dense and aligned else None


def empty_map(like: Tensor, images: int, shape: MapShape, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised map ``(image, channel, y, x)``, images last, on the device of ``like``."""
    channel = max(images, 1)
    column, row = shape.channels * channel, shape.width * shape.channels * channel
    # no view, which torch would not let be changed in place behind an autograd.Function
    size, strides = (images, shape.channels, shape.height, shape.width), (1, channel, row, column)
    return like.new_empty_strided(size, strides, dtype=dtype)


def lay_out(values: Tensor, layer: BlockLocal) -> Tensor:
    """A value a neuron ``(block_y, block_x, neuron)`` as a map ``(depth, y, x)``: blocks lie side by side."""
    down, across = layer.grid
    spread = values.reshape(down, across, layer.rows, layer.columns, layer.depth).permute(4, 0, 2, 1, 3)
    return spread.reshape(layer.depth, down * layer.rows, across * layer.columns)
