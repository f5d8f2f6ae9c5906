"""The three main products of a block-local layer, by the fastest backend on this machine.

Knows: the backends: the library's kernels on CPUs, Triton's on CUDA, torch.bmm elsewhere. Does not know:
gradients, how a backend works.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Box, MapShape, Region
from cotswold.kernels import cuda
from cotswold.kernels.available import fallback_to_torch, has_cuda_kernel, has_product_kernel
from cotswold.kernels.operands import map_strides
from cotswold.ops import batched
from cotswold.ops.memory_format import empty_map, images_last_no_grad, neurons_to_map

BANDS_FROM_BYTES = 1 << 20
"""Bytes of a map from which it is copied in bands."""
BANDS_MOST = 4
LEAST_BLOCK_ROWS = 6
"""Least block rows of a band: input rows that two bands share are copied for each."""


@lru_cache(maxsize=256)
def output_of(layer: BlockLocal) -> MapShape:
    """Cached output map of a layer; not for code that a compiler traces, which cannot see the cache."""
    return layer.output


@fallback_to_torch
def product(x: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``Wx``, the map of responses."""
    if not reads_images_last(x):
        return batched.product(x, filters, layer)
    filters, out = filters.contiguous(), empty_map(x, x.shape[0], output_of(layer))
    if x.is_cuda:
        cuda.product(images_last_no_grad(x), filters, layer, out)
        return out
    x = arranged_if_small(x)
    if map_strides(x) is not None:
        _kernels().product(x, filters, layer, out)
        return out

    def of_band(band: BlockLocal, seen: Tensor, blocks: slice) -> None:
        rows = slice(blocks.start * layer.rows, blocks.stop * layer.rows)
        _kernels().product(seen, filters[blocks], band, out[:, :, rows])

    for_each_band(x, layer, of_band)
    return out


@fallback_to_torch
def product_of(
    x: Tensor,
    filters: Tensor,
    layer: BlockLocal,
    only: Region,
    out: Tensor,
    biases: Tensor | None = None,
) -> None:
    """Write ``Wx`` of the blocks in ``only`` into a map of responses; see `has_regions`.

    If ``biases`` are given, add them, with the same bits as `ops.local_layer` if `supports_biases`.
    """
    if not _intersects(only, layer.grid):
        return
    if not has_regions(x):  # a kernel failed its self-test after the caller had checked
        whole = product(x, filters, layer)
        if biases is not None:
            whole.add_(neurons_to_map(biases, layer))
        blocks = _region_mask(only, layer.grid)
        inside = blocks.repeat_interleave(layer.rows, 0).repeat_interleave(layer.columns, 1)
        out.copy_(torch.where(inside, whole, out))
    elif biases is None:
        _kernels().product(x, filters, layer, out, only=only)
    else:
        _kernels().product_with_activation(x, filters, biases, layer, out, "identity", only=only)


def supports_biases(x: Tensor, layer: BlockLocal) -> bool:
    """True if kernels add biases within a product; else they are added afterwards."""
    return supports_epilogue(x, layer, "identity")


def supports_epilogue(x: Tensor, layer: BlockLocal, activation: str) -> bool:
    """True if a product can include biases and an activation; see `kernels.products.supports_epilogue`."""
    from cotswold.kernels import products

    return products.supports_epilogue(x.shape[0], x.dtype, layer, activation)


@fallback_to_torch
def adjoint_at(y: Tensor, filters: Tensor, layer: BlockLocal, only: Region, out: Tensor) -> None:
    """Write ``W'y`` at the positions in ``only`` into an input map; see `has_regions`."""
    plane = (layer.input.height, layer.input.width)
    if not _intersects(only, plane):
        return
    if has_regions(y):
        _kernels().adjoint(y, filters, layer, out, only=only)
    else:
        out.copy_(torch.where(_region_mask(only, plane), adjoint(y, filters, layer), out))


def _region_mask(only: Region, plane: tuple[int, int]) -> Tensor:
    """Mask of the points of a plane that a region contains."""
    return torch.tensor(
        [[only.contains(y, x) for x in range(plane[1])] for y in range(plane[0])], device="cpu"
    )


def has_regions(x: Tensor) -> bool:
    """True if products of maps like ``x`` (images last, filters contiguous) can be restricted to regions."""
    return has_product_kernel(x)


def _intersects(only: Region, shape: tuple[int, int]) -> bool:
    """True if a region contains any point of a plane."""
    inside = only.box.intersect(Box.whole(shape)).size
    return inside < shape[0] * shape[1] if only.is_outside else inside > 0


def reads_images_last(x: Tensor) -> bool:
    """True if kernels compute products of a tensor: they read maps with images last."""
    return has_product_kernel(x) or has_cuda_kernel(x)


def arranged_if_small(x: Tensor) -> Tensor:
    """Return a small map with images last; a large one is copied in bands."""
    return images_last_no_grad(x) if x.nbytes < BANDS_FROM_BYTES else x


def for_each_band(x: Tensor, layer: BlockLocal, of_band: Callable[[BlockLocal, Tensor, slice], None]) -> None:
    """Process a layer in bands of block rows; pass each band its input (images last) and its block rows.

    A map is copied band by band, so that a forward pass never holds a second copy of the whole map. A map
    with images last needs no copy and no bands.
    """
    down = layer.grid[0]
    count = max(1, min(BANDS_MOST, down // LEAST_BLOCK_ROWS))
    for number in range(count):
        first, stop = down * number // count, down * (number + 1) // count
        band, rows = layer.block_rows(first, stop)
        of_band(band, images_last_no_grad(x[:, :, slice(*rows)]), slice(first, stop))


@fallback_to_torch
def adjoint(y: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``W'y`` on the input map; overlapping fields are summed."""
    if not reads_images_last(y):
        return batched.adjoint(y, filters, layer)
    y, filters = images_last_no_grad(y), filters.contiguous()
    out = empty_map(y, y.shape[0], layer.input)
    if y.is_cuda:
        cuda.adjoint(y, filters, layer, out)
    else:
        _kernels().adjoint(y, filters, layer, out)
    return out


@fallback_to_torch
def outer(delta: Tensor, x: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``δx'`` summed over images: the filters' gradient, 0 for weights that read only padding."""
    if not reads_images_last(x):
        return batched.outer(delta, x, layer)
    delta, x = images_last_no_grad(delta), images_last_no_grad(x)
    padded = any((layer.y.pad_before, layer.y.pad_after, layer.x.pad_before, layer.x.pad_after))
    new = x.new_zeros if padded or x.shape[0] == 0 else x.new_empty
    gradient = new(layer.filters_shape)
    if x.shape[0] == 0:
        return gradient
    if x.is_cuda:
        cuda.outer(delta, x, layer, gradient)
    else:
        _kernels().outer(delta, x, layer, gradient)
    return gradient


def _kernels() -> ModuleType:
    """Import the CPU kernels on first use: they need llvmlite, which may be missing."""
    return importlib.import_module("cotswold.kernels.products")
