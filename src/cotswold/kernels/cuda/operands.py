"""Operands of the Triton kernels: maps with images last, and filters.

Knows: the strides that a kernel can follow. Does not know: what is computed. Does not copy: the caller does.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape


@dataclass(frozen=True)
class CudaMapStrides:
    """Strides of a map: elements between channels and between rows; a column is all its channels."""

    channel: int
    row: int


def checked_map_strides(values: Tensor, shape: MapShape, name: str) -> CudaMapStrides:
    """Return the strides of a map ``(image, channel, y, x)``, images last in memory.

    Strides of dimensions with one element are ignored. Raises GeometryError for a tensor of another shape or
    with unsupported strides.
    """
    if tuple(values.shape[1:]) != (shape.channels, shape.height, shape.width) or values.dim() != 4:
        raise GeometryError(f"{name} must be a batch of maps of {shape}, got shape {tuple(values.shape)}")
    image, channel, row, column = values.stride()
    if shape.channels == 1:
        channel = column if shape.width > 1 else max(values.shape[0], 1)
    astray = shape.width > 1 and column != shape.channels * channel
    if astray or (values.shape[0] > 1 and image != 1):
        raise GeometryError(
            f"{name} must have its images last, got strides {values.stride()}; call images_last on it"
        )
    return CudaMapStrides(channel, row if shape.height > 1 else shape.width * shape.channels * channel)


def check_filters(filters: Tensor, layer: BlockLocal) -> None:
    """Raise GeometryError for filters of another shape than the layer's, or not contiguous."""
    if tuple(filters.shape) != layer.filters_shape or not filters.is_contiguous():
        raise GeometryError(
            f"filters must be contiguous and of shape {layer.filters_shape}, got shape "
            f"{tuple(filters.shape)} and strides {filters.stride()}; call .contiguous() on them"
        )
