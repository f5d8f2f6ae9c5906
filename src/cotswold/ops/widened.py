"""The three heavy products of half precision, as float32 and band by band, where a processor cannot do them.

Knows: how much is converted at a time. Does not know: how a product is computed, gradients.

Filters are converted a few rows of blocks at a time, so that their float32 values stay in a cache until a
kernel has read them. Sums are float32, and each result is rounded once.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal
from cotswold.ops.layout import empty_map
from cotswold.ops.order import arranged

BAND_BYTES = 1 << 21
"""Filters of a band in float32, about: what a cache of a core holds."""


@lru_cache(maxsize=256)
def _bands(layer: BlockLocal) -> tuple[tuple[BlockLocal, slice, slice, slice], ...]:
    """Layers of some rows of blocks: their blocks, the rows that they read, the rows that they write."""
    down, found = layer.grid[0], []
    each = max(1, BAND_BYTES // (4 * prod(layer.filters_shape[1:])))
    for first in range(0, down, each):
        stop = min(first + each, down)
        band, seen = layer.block_rows(first, stop)
        written = slice(first * layer.rows, stop * layer.rows)
        found.append((band, slice(first, stop), slice(*seen), written))
    return tuple(found)


def _wide(values: Tensor) -> Tensor:
    return arranged(arranged(values).float())


def product(x: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """``Wx``: the map of responses."""
    from cotswold.kernels import products

    out = empty_map(x, x.shape[0], layer.output)
    if out.numel() == 0:
        return out
    wide = _wide(x)
    for band, blocks, seen, written in _bands(layer):
        part = empty_map(wide, x.shape[0], band.output)
        products.product(wide[:, :, seen], filters[blocks].float().contiguous(), band, part)
        out[:, :, written] = part
    return out


def adjoint(y: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """``W'y``: back to the input map, overlapping fields summed."""
    from cotswold.kernels import products

    sums, bands = empty_map(y, y.shape[0], layer.input, torch.float32), _bands(layer)
    if sums.numel() == 0:
        return sums.to(y.dtype)
    wide = _wide(y)
    if len(bands) == 1:
        products.adjoint(wide, filters.float().contiguous(), layer, sums)
        return sums.to(y.dtype)
    sums.zero_()
    for band, blocks, seen, written in bands:
        part = empty_map(wide, y.shape[0], band.input)
        products.adjoint(wide[:, :, written], filters[blocks].float().contiguous(), band, part)
        sums[:, :, seen] += part
    return sums.to(y.dtype)


def outer(delta: Tensor, x: Tensor, layer: BlockLocal) -> Tensor:
    """``δx'`` summed over images; 0 for weights that meet padding only."""
    from cotswold.kernels import products

    gradient = x.new_empty(layer.filters_shape)
    if x.shape[0] == 0:
        return gradient.zero_()
    wide, wide_delta = _wide(x), _wide(delta)
    padded = any((layer.y.low, layer.y.high, layer.x.low, layer.x.high))
    new = wide.new_zeros if padded else wide.new_empty
    for band, blocks, seen, written in _bands(layer):
        part = new(band.filters_shape)
        products.outer(wide_delta[:, :, written], wide[:, :, seen], band, part)
        gradient[blocks] = part
    return gradient
