"""Filters: their first values and their norms.

Knows: the layout ``(block_y, block_x, field_y, field_x * channel, neuron)``. Does not know: products, steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.ops.products import accumulator


def filter_norms(filters: Tensor) -> Tensor:
    """The Euclidean norm of every filter, ``(block_y, block_x, neuron)``; float32 for bfloat16 filters."""
    norms: Tensor = torch.linalg.vector_norm(filters, dim=(2, 3), dtype=accumulator(filters.dtype))
    return norms


def random_filters(
    layer: BlockLocal,
    seed: int,
    stack: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Gaussian filters of unit norm, ``(block_y, block_x, field_y, field_x * channel, neuron)``.

    The values of a block depend on ``(seed, stack, block_y, block_x)`` and the shape of a block alone, so
    that no grid, device or number of threads changes them. Weights that meet only padding are 0.
    """
    out = torch.empty(layer.filters_shape, dtype=dtype, device=device)
    shape, channels = layer.filters_shape[2:], layer.input.channels
    for y in range(layer.grid[0]):
        top, bottom = layer.y.skipped(y, layer.input.height)
        for x in range(layer.grid[1]):
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, stack, y, x))))
            values = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(torch.float64)
            left, right = layer.x.skipped(x, layer.input.width)
            values[:top] = 0
            values[shape[0] - bottom :] = 0
            values[:, : left * channels] = 0
            values[:, shape[1] - right * channels :] = 0
            out[y, x] = values / torch.linalg.vector_norm(values, dim=(0, 1))
    return out
