"""Neurons of a layer as rows, for layers of any shape.

Knows: how a map of responses flattens, in memory order, and the position of a neuron. Does not know: the use
of responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

Position = tuple[int, ...]


def rows(responses: Tensor) -> Tensor:
    """Return responses ``(image, ...)`` as ``(neuron, image)``: a view if the image is last in memory.

    Maps ``(image, channel, y, x)`` flatten as [y][x][channel], other shapes in their own order.
    """
    order = (2, 3, 1, 0) if responses.dim() == 4 else (*range(1, responses.dim()), 0)
    return responses.permute(order).reshape(-1, responses.shape[0])


def locate(neuron: int, shape: Sequence[int]) -> Position:
    """Return the position of a row's neuron in a response of ``shape``: (channel, y, x) in a map.

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
    """Return the row of the neuron at ``position``; the inverse of `locate`."""
    if len(shape) == 3:
        (channel, y, x), (channels, _, width) = position, shape
        return (y * width + x) * channels + channel
    row = 0
    for index, extent in zip(position, shape, strict=True):
        row = row * extent + index
    return row
