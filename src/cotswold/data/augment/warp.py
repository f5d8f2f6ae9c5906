"""Pictures whose pixels are moved: a map of places, a smooth field of displacements, values between pixels.

Knows: float32 arrays (image, channel, y, x). Does not know: which moves there are, how they are drawn.

Every number comes about by the same operations in the same order, whatever else is in the batch, and without
fused multiply-adds: the same bits on every processor.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cotswold.data.augment import exact
from cotswold.data.augment.draws import Float32, Keys, uniform
from cotswold.data.augment.moves import Maps

_REACH = 4.0
"""Deviations after which a Gaussian is taken for 0."""


def field(keys: Keys, stream: int, height: int, width: int, sigma: float) -> Float32:
    """Uniform numbers in -1 to 1, smoothed by a Gaussian of ``sigma`` pixels; beyond the edge they are 0.
    Float32 (image, 2, y, x)."""
    drawn = uniform(keys, stream, 2 * height * width, -1.0, 1.0).reshape(len(keys), 2, height, width)
    return _smoothed(_smoothed(drawn, sigma, 3), sigma, 2)


def warped(values: Float32, maps: Maps, displacement: Float32 | None, fill: str) -> Float32:
    """Pictures (image, channel, y, x) at other places, bilinear between pixels.

    ``maps``: for each picture from a place of the result, (y, x) from the middle, to one of the picture;
    ``displacement``: (image, 2, y, x), in pixels, is added to that.
    """
    height, width = values.shape[2:]
    places = _places(maps.astype(np.float32), height, width)
    if displacement is not None:
        places += displacement
    low = np.floor(places)
    part = places - low
    corners = low.astype(np.int64)
    rows, columns = (
        [_inside(corners[:, axis] + step, size, fill) for step in (0, 1)]
        for axis, size in enumerate((height, width))
    )
    flat = values.reshape(*values.shape[:2], height * width)
    found = np.zeros_like(values)
    for down, (row, row_there) in enumerate(rows):
        for right, (column, column_there) in enumerate(columns):
            share = _share(part[:, 0], down) * _share(part[:, 1], right)
            if fill == "zero":
                share = share * (row_there & column_there)
            at = (row * width + column).reshape(len(values), 1, height * width)
            corner = np.take_along_axis(flat, at, axis=2).reshape(values.shape)
            found += share[:, None] * corner
    return found


def _places(maps: Float32, height: int, width: int) -> Float32:
    """Where in the picture each pixel comes from, (y, x) from its corner: (image, 2, y, x)."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2], np.float32)
    y = (np.arange(height, dtype=np.float32) - middle[0])[None, None, :, None]
    x = (np.arange(width, dtype=np.float32) - middle[1])[None, None, None, :]
    each = maps[:, :, :, None, None]
    moved = each[:, :, 0] * y + each[:, :, 1] * x
    found: Float32 = moved + (maps[:, :, 2] + middle)[:, :, None, None]
    return found


def _share(part: Float32, step: int) -> Float32:
    return part if step else np.float32(1) - part


def _inside(at: np.ndarray, size: int, fill: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices that are there, and whether they were before."""
    there = (at >= 0) & (at < size)
    if fill == "reflect" and size > 1:
        turned = np.abs(at) % (2 * size - 2)
        return np.minimum(turned, 2 * size - 2 - turned), there
    return at.clip(0, size - 1), there


def _smoothed(values: Float32, sigma: float, axis: int) -> Float32:
    """Along an axis."""
    taps = _taps(sigma)
    reach, size = len(taps) // 2, values.shape[axis]
    found = np.zeros_like(values)
    for step in range(-min(reach, size - 1), min(reach, size - 1) + 1):
        into = [slice(None)] * 4
        of = [slice(None)] * 4
        into[axis] = slice(max(0, -step), min(size, size - step))
        of[axis] = slice(max(0, step), min(size, size + step))
        found[tuple(into)] += taps[step + reach] * values[tuple(of)]
    return found


@lru_cache(maxsize=64)
def _taps(sigma: float) -> Float32:
    """A Gaussian whose sum is 1."""
    reach = max(1, math.ceil(_REACH * sigma))
    weights = exact.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    found: Float32 = (weights / math.fsum(weights)).astype(np.float32)
    return found
