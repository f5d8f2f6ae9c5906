"""The three main products of a block-local layer on CUDA: the launch of each kernel.

Knows: layers, operands, the extents that a tile divides. Does not know: gradients, how kernels are compiled.

Maps are logical ``(image, channel, y, x)`` tensors with the images last in memory, in any strides (a slice of
a batch is read and written in place). Filters are contiguous, ``(block_y, block_x, field_y, field_x *
channel, neuron)``. All are float32, float64 or bfloat16 (summed in float32) on one device. One program writes
each element of ``out``, so that the same call gives the same bits. All functions raise GeometryError for
operands that do not fit, and MissingExtraError without Triton.
"""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape
from cotswold.kernels.cuda.launch import TunedKernel, arithmetic, check_types
from cotswold.kernels.cuda.operands import CudaMapStrides, check_filters, checked_map_strides
from cotswold.kernels.cuda.tiles import ADJOINT, OUTER, PRODUCT, best_cell, image_class

MOST_GRAIN = 16
"""Largest common divisor that helps: 16 bytes hold at most 8 elements, and Triton tells 16 from less."""
_LAYER = ("channels", "field_y", "field_x", "rows", "columns", "depth", "image_class", "PRECISION")
_PRODUCT = TunedKernel("product", PRODUCT, _LAYER)
_ADJOINT = TunedKernel("adjoint", ADJOINT, (*_LAYER, "step_y", "step_x", "PLACES"))
_OUTER = TunedKernel("outer", OUTER, _LAYER)


def _constants(layer: BlockLocal, images: int) -> dict[str, int]:
    """Compile-time constants that every kernel takes from a layer."""
    return {
        "channels": layer.input.channels,
        "field_y": layer.y.size,
        "field_x": layer.x.size,
        "rows": layer.rows,
        "columns": layer.columns,
        "depth": layer.depth,
        "image_class": image_class(images),
    }


def adjoint_constants(layer: BlockLocal, images: int) -> dict[str, int]:
    """Compile-time constants of the adjoint, which include those of the other products."""
    cell = best_cell(layer)
    return {
        **_constants(layer, images),
        "step_y": layer.y.stride,
        "step_x": layer.x.stride,
        "cell_rows": cell.rows,
        "cell_wide": cell.wide,
        "WHOLE": cell.is_whole(layer),
        "PLACES": cell.positions,
    }


def _numbers(layer: BlockLocal) -> tuple[int, int, int, int]:
    """Height and width of the input map, and the padding before it."""
    return layer.input.height, layer.input.width, layer.y.pad_before, layer.x.pad_before


def _in_grains(images: int, *maps: CudaMapStrides) -> tuple[int, int, tuple[int, ...]]:
    """Return the common divisor of the images and all strides, at most 16; both divided by it."""
    strides = [stride for each in maps for stride in (each.channel, each.row)]
    grain = gcd(MOST_GRAIN, images, *strides)
    return grain, images // grain, tuple(stride // grain for stride in strides)


def _same_batch(one: Tensor, other: Tensor) -> int:
    if one.shape[0] != other.shape[0]:
        raise GeometryError(
            f"maps of one product need equal image counts, got {one.shape[0]} and {other.shape[0]}"
        )
    return one.shape[0]


def _checked(
    source: tuple[Tensor, MapShape], filters: Tensor, layer: BlockLocal, target: tuple[Tensor, MapShape]
) -> tuple[int, int, int, tuple[int, ...]]:
    """Check the operands of a product; return the number of images, and what `_in_grains` returns."""
    check_types((source[0], filters, target[0]))
    check_filters(filters, layer)
    strides = checked_map_strides(*source, "the input"), checked_map_strides(*target, "the output")
    images = _same_batch(source[0], target[0])
    return images, *_in_grains(images, *strides)


def product(x: Tensor, filters: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = Wx`` (Coates et al. 2013, section 4.1): maps of ``layer.input`` to maps of ``layer.output``."""
    images, grain, grains, strides = _checked((x, layer.input), filters, layer, (out, layer.output))
    if images == 0:
        return
    _PRODUCT.start(
        (x, filters, out),
        (grains, *_numbers(layer), layer.y.stride, layer.x.stride, layer.grid[1], *strides),
        {"NEURONS": layer.neurons, "IMAGES": images},
        layer.grid[0] * layer.grid[1],
        {**_constants(layer, images), "GRAIN": grain, **arithmetic(x.dtype)},
    )


def adjoint(y: Tensor, filters: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = W'y``: maps of ``layer.output`` to maps of ``layer.input``, with overlapping fields summed.

    Positions outside all fields are 0.
    """
    images, grain, grains, strides = _checked((y, layer.output), filters, layer, (out, layer.input))
    if images == 0:
        return
    _ADJOINT.start(
        (y, filters, out),
        (grains, *_numbers(layer), *layer.grid, *strides),
        {"IMAGES": images},
        best_cell(layer).count(layer),
        {
            **adjoint_constants(layer, images),
            "GRAIN": grain,
            **arithmetic(y.dtype),
        },
    )


def needs_neurons_last(dtype: torch.dtype, precision: str) -> bool:
    """True if no tensor core multiplies this dtype: `outer` then reads a copy of delta with neurons last."""
    return dtype == torch.float32 and precision == "ieee"


def outer(delta: Tensor, x: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = δx'`` summed over images, shaped as the filters; 0 for weights that read only padding.

    Full float32 copies delta; see `needs_neurons_last`.
    """
    check_types((delta, x, out))
    check_filters(out, layer)
    delta_strides, x_strides = (
        checked_map_strides(delta, layer.output, "delta"),
        checked_map_strides(x, layer.input, "the input"),
    )
    images, precision = _same_batch(delta, x), arithmetic(x.dtype)
    steps: tuple[int, ...]
    neurons_last = needs_neurons_last(x.dtype, precision["PRECISION"])
    if neurons_last:
        delta, row = delta.permute(0, 2, 3, 1).contiguous(), layer.output.width * layer.output.channels
        delta_grain = gcd(MOST_GRAIN, row)
        steps = (layer.output.height * row // delta_grain, 1, row // delta_grain)
        grain, grains, strides = _in_grains(images, x_strides)
    else:
        grain, grains, both = _in_grains(images, x_strides, delta_strides)
        strides, steps, delta_grain = both[:2], (1, *both[2:]), grain
    _OUTER.start(
        (delta, x, out),
        (grains, *_numbers(layer), layer.y.stride, layer.x.stride, layer.grid[1], *steps, *strides),
        {"PLACES": layer.fan_in, "NEURONS": layer.neurons},
        layer.grid[0] * layer.grid[1],
        {
            **_constants(layer, images),
            "GRAIN": grain,
            "DELTA_GRAIN": delta_grain,
            "NEURONS_LAST": neurons_last,
            **precision,
        },
    )
