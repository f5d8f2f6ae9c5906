"""Operands of the kernels: maps whose images are last, and filters.

Knows: what strides a program can follow. Does not know: what is computed. Does not copy: the caller does.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape


@dataclass(frozen=True)
class Reach:
    """Elements between neighbouring channels and between neighbouring rows; a column is all its channels."""

    channel: int
    row: int


def reach_of(values: Tensor, shape: MapShape, name: str) -> Reach:
    """How to step through a map ``(image, channel, y, x)``, images last in memory, of any batch and pitch.

    Strides of dimensions with one element say nothing and are not asked. Raises GeometryError for a tensor of
    another shape or with other strides.
    """
    if tuple(values.shape[1:]) != (shape.channels, shape.height, shape.width) or values.dim() != 4:
        raise GeometryError(f"{name} of shape {tuple(values.shape)} is not a batch of maps of {shape}")
    image, channel, row, column = values.stride()
    if shape.channels == 1:
        channel = column if shape.width > 1 else max(values.shape[0], 1)
    astray = shape.width > 1 and column != shape.channels * channel
    if astray or (values.shape[0] > 1 and image != 1):
        raise GeometryError(
            f"{name} with strides {values.stride()} does not have its images last; call images_last on it"
        )
    return Reach(channel, row if shape.height > 1 else shape.width * shape.channels * channel)


def check_filters(filters: Tensor, layer: BlockLocal) -> None:
    """Raises GeometryError for filters that are not those of the layer, or not contiguous."""
    if tuple(filters.shape) != layer.filters_shape or not filters.is_contiguous():
        raise GeometryError(
            f"filters of shape {tuple(filters.shape)} and strides {filters.stride()} are not contiguous "
            f"and of shape {layer.filters_shape}; make them so"
        )
