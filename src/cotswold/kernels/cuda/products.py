"""The three main products of a block-local layer on CUDA: the launch of each kernel.

Knows: layers, operands, the extents that a tile divides. Does not know: gradients, how kernels are compiled.

Maps are logical ``(image, channel, y, x)`` tensors with the images last in memory, in any strides (a slice of
a batch is read and written in place). Filters are contiguous, ``(block_y, block_x, field_y, field_x *
channel, neuron)``. All are float32, float64 or bfloat16 (summed in float32) on one device. One program writes
each element of ``out``, so that the same call gives the same bits. All functions raise GeometryError for
operands that do not fit, and MissingExtraError without Triton.
"""

from __future__ import annotations

from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal
from cotswold.kernels.cuda.launch import TunedKernel, arithmetic, check_types
from cotswold.kernels.cuda.operands import check_filters, checked_map_strides
from cotswold.kernels.cuda.tiles import ADJOINT, OUTER, PRODUCT, best_cell, image_class

_LAYER = ("channels", "field_y", "field_x", "rows", "columns", "depth", "image_class", "PRECISION")
_PRODUCT = TunedKernel("product", PRODUCT, _LAYER)
_ADJOINT = TunedKernel("adjoint", ADJOINT, (*_LAYER, "step_y", "step_x", "PLACES"))
_OUTER = TunedKernel("outer", OUTER, _LAYER)


def _numbers(layer: BlockLocal, images: int) -> tuple[int, ...]:
    """Arguments that every kernel takes from a layer, in order."""
    shape, y, x = layer.input, layer.y, layer.x
    field = (y.size, x.size, y.stride, x.stride, y.pad_before, x.pad_before)
    return (images, shape.channels, shape.height, shape.width, *field, layer.rows, layer.columns, layer.depth)


def _same_batch(one: Tensor, other: Tensor) -> int:
    if one.shape[0] != other.shape[0]:
        raise GeometryError(
            f"maps of one product need equal image counts, got {one.shape[0]} and {other.shape[0]}"
        )
    return one.shape[0]


def product(x: Tensor, filters: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = Wx`` (Coates et al. 2013, section 4.1): maps of ``layer.input`` to maps of ``layer.output``."""
    check_types((x, filters, out))
    check_filters(filters, layer)
    x_strides, out_strides = (
        checked_map_strides(x, layer.input, "the input"),
        checked_map_strides(out, layer.output, "the output"),
    )
    images = _same_batch(x, out)
    if images == 0:
        return
    pitches = (x_strides.channel, x_strides.row, out_strides.channel, out_strides.row)
    _PRODUCT.start(
        (x, filters, out),
        (*_numbers(layer, images), layer.grid[1], *pitches),
        {"NEURONS": layer.neurons, "IMAGES": images},
        layer.grid[0] * layer.grid[1],
        {"image_class": image_class(images), **arithmetic(x.dtype)},
    )


def adjoint(y: Tensor, filters: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = W'y``: maps of ``layer.output`` to maps of ``layer.input``, with overlapping fields summed.

    Positions outside all fields are 0.
    """
    check_types((y, filters, out))
    check_filters(filters, layer)
    y_strides, out_strides = (
        checked_map_strides(y, layer.output, "the input"),
        checked_map_strides(out, layer.input, "the output"),
    )
    images = _same_batch(y, out)
    if images == 0:
        return
    cell = best_cell(layer)
    pitches = (y_strides.channel, y_strides.row, out_strides.channel, out_strides.row)
    _ADJOINT.start(
        (y, filters, out),
        (*_numbers(layer, images), *layer.grid, *pitches, cell.rows, cell.wide),
        {"IMAGES": images},
        cell.count(layer),
        {"image_class": image_class(images), "PLACES": cell.positions, **arithmetic(y.dtype)},
    )


def outer(delta: Tensor, x: Tensor, layer: BlockLocal, out: Tensor) -> None:
    """``out = δx'`` summed over images, shaped as the filters; 0 for weights that read only padding."""
    check_types((delta, x, out))
    check_filters(out, layer)
    delta_strides, x_strides = (
        checked_map_strides(delta, layer.output, "delta"),
        checked_map_strides(x, layer.input, "the input"),
    )
    images = _same_batch(delta, x)
    pitches = (delta_strides.channel, delta_strides.row, x_strides.channel, x_strides.row)
    _OUTER.start(
        (delta, x, out),
        (*_numbers(layer, images), layer.grid[1], *pitches),
        {"PLACES": layer.fan_in, "NEURONS": layer.neurons},
        layer.grid[0] * layer.grid[1],
        {"image_class": image_class(images), **arithmetic(x.dtype)},
    )
