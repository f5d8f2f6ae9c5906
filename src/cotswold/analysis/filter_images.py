"""Filters of a stack as small images, from random positions of its map.

Knows: the layout of filters in a stack, colours of signed values. Does not know: the report, figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotswold.analysis.images import signed
from cotswold.data import Transform
from cotswold.data.preprocessing.whitening import NYQUIST, Float32, cosine_radii, filtered, roll_off
from cotswold.nn import SparseAutoencoderStack


@dataclass(frozen=True)
class FilterPosition:
    """Position of a filter in a stack: row and column of its block, index within the block."""

    block_y: int
    block_x: int
    neuron: int


def choose_filters(grid: tuple[int, int], neurons: int, most: int) -> list[FilterPosition]:
    """Return at most ``most`` random filters of a grid of blocks, without repetition, in order.

    Every call returns the same filters.
    """
    total = grid[0] * grid[1] * neurons
    chosen = np.random.default_rng(0).choice(total, min(most, total), replace=False)
    found = (divmod(int(index), neurons) for index in sorted(chosen))
    return [FilterPosition(*divmod(block, grid[1]), neuron) for block, neuron in found]


def filter_weights(stack: SparseAutoencoderStack, place: FilterPosition) -> NDArray[np.float32]:
    """Return the weights of a filter, ``(channel, y, x)``."""
    layer = stack.geometry.filters
    one = stack.filters[place.block_y, place.block_x, :, :, place.neuron].detach().float().cpu().numpy()
    found: NDArray[np.float32] = one.reshape(layer.y.size, layer.x.size, layer.input.channels)
    return found.transpose(2, 0, 1)


def filter_tile(stack: SparseAutoencoderStack, place: FilterPosition) -> NDArray[np.uint8]:
    """Return a filter as an RGB image ``(field_y, field_x, 3)``, scaled separately: 0 is mid-grey."""
    return signed(filter_weights(stack, place))


def undo_whitening(images: Float32, transform: Transform) -> Float32:
    """Return prepared images ``(image, channel, y, x)`` before whitening, except for what the filter removed.

    Above the whitened band the filter falls to 0; there the result falls too, instead of dividing by it.
    """
    if transform.whitening is None:
        return images
    height, width = images.shape[2:]
    matrices = transform.whitening.frequency_matrices(height, width).transpose(2, 3, 0, 1).astype(np.float64)
    passed = roll_off(cosine_radii(height, width), transform.preparation.whiten_cutoff * NYQUIST)
    kept = passed > 1e-3
    inverse = np.zeros_like(matrices)
    inverse[kept] = np.linalg.pinv(matrices[kept]) * (passed[kept] ** 2)[:, None, None]
    return filtered(images, np.ascontiguousarray(inverse.transpose(2, 3, 0, 1), np.float32))
