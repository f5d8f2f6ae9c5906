"""Operands as kernels take them: types by name, maps ``(image, channel, y, x)`` by their pitches.

Knows: strides of maps whose images are last in memory, ``[y][x][channel][image]``. Does not know: what is
computed from a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pitches:
    """Numbers between neighbouring channels, columns and rows of a map whose images are last."""

    channel: int
    column: int
    row: int


def pitches_of(x: Tensor) -> Pitches | None:
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
    return Pitches(channel, channels * channel, row) if dense and aligned else None


def required_pitches(x: Tensor) -> Pitches:
    """The pitches of a map whose images are known to be last."""
    found = pitches_of(x)
    assert found is not None, "the images of a map must be last"
    return found


@lru_cache(maxsize=16)
def name_of(dtype: torch.dtype) -> str:
    """A type as kernels call it: ``float32``."""
    return str(dtype).removeprefix("torch.")
