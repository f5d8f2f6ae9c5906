"""Slow, simple versions of the operations in float64, to check the fast ones.

Knows: the definitions, written as loops. Does not know: layouts, strides, speed. Shapes are those of the fast
versions; autograd can differentiate everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64)


def _connections(layer: BlockLocal) -> Iterator[tuple[tuple[int, int, int, int], tuple[int, int]]]:
    """Yield ``(block y, block x, field y, field x)`` and the ``(y, x)`` of the map at that place,
    if inside.
    """
    for by in range(layer.grid[0]):
        for bx in range(layer.grid[1]):
            for fy in range(layer.y.size):
                for fx in range(layer.x.size):
                    y = by * layer.y.stride - layer.y.pad_before + fy
                    x = bx * layer.x.stride - layer.x.pad_before + fx
                    if 0 <= y < layer.input.height and 0 <= x < layer.input.width:
                        yield (by, bx, fy, fx), (y, x)


def _neurons(layer: BlockLocal, by: int, bx: int) -> tuple[slice, slice, slice]:
    """Return the place of a block's neurons in an output map ``(depth, y, x)``."""
    rows = slice(by * layer.rows, (by + 1) * layer.rows)
    columns = slice(bx * layer.columns, (bx + 1) * layer.columns)
    return slice(None), rows, columns


def matrix(filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return W as a dense matrix ``(depth * y * x of the output, channel * y * x of the input)``."""
    filters, into, onto = _wide(filters), layer.input, layer.output
    out = filters.new_zeros(onto.channels, onto.height, onto.width, into.channels, into.height, into.width)
    for (by, bx, fy, fx), (y, x) in _connections(layer):
        for channel in range(into.channels):
            weights = filters[by, bx, fy, fx * into.channels + channel]
            block = weights.view(layer.rows, layer.columns, layer.depth).permute(2, 0, 1)
            out[(*_neurons(layer, by, bx), channel, y, x)] = block
    return out.reshape(onto.size, into.size)


def local_product(x: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``Wx``, ``(image, depth, y, x)``."""
    out = layer.output
    values = _wide(x).reshape(x.shape[0], layer.input.size) @ matrix(filters, layer).T
    return values.reshape(x.shape[0], out.channels, out.height, out.width)


def local_adjoint(y: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``W'y``, ``(image, channel, y, x)``."""
    out = layer.input
    values = _wide(y).reshape(y.shape[0], layer.output.size) @ matrix(filters, layer)
    return values.reshape(y.shape[0], out.channels, out.height, out.width)


def local_outer(delta: Tensor, x: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``δx'`` summed over images, in the shape of the filters."""
    delta, x, channels = _wide(delta), _wide(x), layer.input.channels
    out = x.new_zeros(layer.filters_shape)
    for (by, bx, fy, fx), (row, column) in _connections(layer):
        block = delta[(slice(None), *_neurons(layer, by, bx))].permute(0, 2, 3, 1).flatten(1)
        out[by, bx, fy, fx * channels : (fx + 1) * channels] = x[:, :, row, column].T @ block
    return out


def _windows(
    shape: MapShape, smoothing: Smoothing
) -> Iterator[tuple[int, int, list[tuple[int, int, int, int]]]]:
    """Yield every output ``(y, x)`` with the places ``(y, x, dy, dx)`` of its window inside the map."""
    low, size, out = smoothing.window.pad_before, smoothing.size, smoothing.output(shape)
    for y in range(out.height):
        for x in range(out.width):
            places = [(y - low + dy, x - low + dx, dy, dx) for dy in range(size) for dx in range(size)]
            yield y, x, [p for p in places if 0 <= p[0] < shape.height and 0 <= p[1] < shape.width]


def l2_pool(x: Tensor, smoothing: Smoothing, epsilon: float = 1e-6) -> Tensor:
    """Return ``sqrt(sum of x² over a window + epsilon)``."""
    x = _wide(x)
    shape = MapShape(*x.shape[1:])
    out = smoothing.output(shape)
    result = x.new_zeros(x.shape[0], out.channels, out.height, out.width)
    for y, column, places in _windows(shape, smoothing):
        squares = torch.stack([x[:, :, i, j] ** 2 for i, j, _, _ in places])
        result[:, :, y, column] = (squares.sum(0) + epsilon).sqrt()
    return result


def _gaussian_mean(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Return the mean over a window and all maps, weighted by a Gaussian of sigma = window / 4."""
    shape = MapShape(*x.shape[1:])
    out, centre, sigma = smoothing.output(shape), (smoothing.size - 1) / 2, smoothing.size / 4
    result = x.new_zeros(x.shape[0], 1, out.height, out.width)
    for y, column, places in _windows(shape, smoothing):
        weights = [exp(-((dy - centre) ** 2 + (dx - centre) ** 2) / (2 * sigma**2)) for *_, dy, dx in places]
        terms = [w * x[:, :, i, j].mean(1) for w, (i, j, _, _) in zip(weights, places, strict=True)]
        result[:, 0, y, column] = torch.stack(terms).sum(0) / sum(weights)
    return result


def _centres(x: Tensor, smoothing: Smoothing) -> Tensor:
    """Return the values in the centres of the windows."""
    if smoothing.keep:
        return x
    first, out = (smoothing.size - 1) // 2, smoothing.output(MapShape(*x.shape[1:]))
    return x[:, :, first : first + out.height, first : first + out.width]


def contrast_norm(x: Tensor, smoothing: Smoothing, floor: float = 0.01) -> Tensor:
    """Return ``g / max(floor, sqrt(sum G g²))`` with ``g = h - sum G h`` (Le et al. 2012)."""
    x = _wide(x)
    centred = _centres(x, smoothing) - _gaussian_mean(x, smoothing)
    power = _gaussian_mean(centred**2, smoothing)
    return _centres(centred, smoothing) / power.clamp_min(floor**2).sqrt()


def objective(
    filters: Tensor, alpha: Tensor, x: Tensor, geometry: StackGeometry, sparsity: float, epsilon: float
) -> Tensor:
    """Return ``||W'(αWx) - x||² + λ sum_j sqrt(V_j (αWx)² + ε)``, a mean over images; W has unit filters."""
    filters = _wide(filters)
    unit = filters / filters.square().sum((2, 3), keepdim=True).sqrt()
    z = alpha * local_product(x, unit, geometry.filters)
    error = (local_adjoint(z, unit, geometry.filters) - _wide(x)).square().sum()
    return (error + sparsity * l2_pool(z, geometry.pool, epsilon).sum()) / x.shape[0]
