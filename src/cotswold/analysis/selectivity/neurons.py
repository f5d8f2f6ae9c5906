"""Neurons of a layer as rows, whatever shape the layer has.

Knows: how a map of responses flattens, in the order in which it lies in memory, and where a neuron is.
Does not know: what is computed from responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

Position = tuple[int, ...]


def rows(responses: Tensor) -> Tensor:
    """Responses ``(image, ...)`` as ``(neuron, image)``: a view where the image is last in memory.

    Maps ``(image, channel, y, x)`` flatten as [y][x][channel], other shapes in their own order.
    """
    order = (2, 3, 1, 0) if responses.dim() == 4 else (*range(1, responses.dim()), 0)
    return responses.permute(order).reshape(-1, responses.shape[0])


def locate(neuron: int, shape: Sequence[int]) -> Position:
    """Where the neuron of row ``neuron`` is in a response of ``shape``: (channel, y, x) in a map.

    >>> locate(7, (3, 4, 5))
    (1, 0, 2)
    """
    assert 0 <= neuron < prod(shape)
    if len(shape) == 3:
        channels, _, width = shape
        return neuron % channels, neuron // channels // width, neuron // channels % width
    place = []
    for extent in reversed(shape):
        neuron, index = divmod(neuron, extent)
        place.append(index)
    return tuple(reversed(place))


def row_of(position: Sequence[int], shape: Sequence[int]) -> int:
    """The row of the neuron at ``position``; the inverse of `locate`."""
    if len(shape) == 3:
        (channel, y, x), (channels, _, width) = position, shape
        return (y * width + x) * channels + channel
    row = 0
    for index, extent in zip(position, shape, strict=True):
        row = row * extent + index
    return row
