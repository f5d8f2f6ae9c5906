"""Pictures whose pixels are moved: a map of places, a smooth field of displacements, values between pixels.

Knows: float32 arrays (image, channel, y, x). Does not know: which moves there are, how they are drawn.

Every number comes about by the same operations in the same order, whatever else is in the batch, and without
fused multiply-adds: the same bits on every processor. What is here in NumPy is what the kernels of
`cotswold.kernels.warp` must give to the bit, and what runs where they cannot be compiled.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cotswold.data.augment import portable_math as exact
from cotswold.data.augment.geometric import Maps
from cotswold.data.augment.random import Float32, Keys, uniform
from cotswold.kernels import warp as kernels
from cotswold.kernels.available import chosen, or_torch
from cotswold.kernels.warp import FAR, Field, Fill, Pictures

_REACH = 4.0
"""Deviations after which a Gaussian is taken for 0."""
_LONGEST = 1 << 15
"""Sides of pictures that kernels number in 32 bits."""


def field(keys: Keys, stream: int, sigma: float, slopes: Maps) -> Field:
    """Uniform numbers in -1 to 1, two a pixel, smoothed by a Gaussian of ``sigma`` pixels; ``slopes``
    (image, 2, 2) make displacements (y, x) of them, in pixels."""
    return Field(
        np.ascontiguousarray(keys, np.uint64),
        stream,
        gaussian(sigma),
        np.ascontiguousarray(slopes, np.float32),
    )


def warped(values: Float32, maps: Maps, displacement: Field | None, fill: Fill) -> Float32:
    """Pictures (image, channel, y, x) at other places, bilinear between pixels.

    ``maps``: for each picture from a place of the result, (y, x) from the middle, to one of the picture;
    ``displacement`` is added to that. What is farther away than `FAR` pixels counts as if it were there.
    """
    asked = Pictures(
        np.ascontiguousarray(values, np.float32), np.ascontiguousarray(maps, np.float32), displacement, fill
    )
    return _done(asked)


@or_torch
def _done(pictures: Pictures) -> Float32:
    if chosen() != "llvm" or max(pictures.values.shape[2:]) >= _LONGEST:
        return plain(pictures)
    found: Float32 = kernels.run(pictures, plain)
    return found


def plain(pictures: Pictures) -> Float32:
    """The same in NumPy."""
    values, fill = pictures.values, pictures.fill
    height, width = values.shape[2:]
    places = _places(pictures.maps, height, width)
    if pictures.field is not None:
        places += _displacements(pictures.field, height, width)
    low = np.floor(places)
    part = places - low
    corners = low.clip(-FAR, FAR).astype(np.int64)
    rows, columns = (
        [_inside(corners[:, axis] + step, size, fill) for step in (0, 1)]
        for axis, size in enumerate((height, width))
    )
    flat = values.reshape(*values.shape[:2], height * width)
    found: Float32 = np.zeros_like(values)
    for down, (row, row_there) in enumerate(rows):
        for right, (column, column_there) in enumerate(columns):
            share = _share(part[:, 0], down) * _share(part[:, 1], right)
            if fill == "zero":
                share = share * (row_there & column_there)
            at = (row * width + column).reshape(len(values), 1, height * width)
            corner = np.take_along_axis(flat, at, axis=2).reshape(values.shape)
            found += share[:, None] * corner
    return found


def _displacements(field: Field, height: int, width: int) -> Float32:
    """What is added to places, (y, x): (image, 2, y, x)."""
    drawn = uniform(field.keys, field.stream, (2, height, width), -1.0, 1.0)
    smooth = smoothed(smoothed(drawn, field.taps, 3), field.taps, 2)
    slopes = field.slopes[:, :, :, None, None]
    found: Float32 = slopes[:, :, 0] * smooth[:, None, 0] + slopes[:, :, 1] * smooth[:, None, 1]
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


def smoothed(values: Float32, taps: Float32, axis: int) -> Float32:
    """Neighbours along an axis times taps; beyond the edge they are 0."""
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
def gaussian(sigma: float) -> Float32:
    """A Gaussian whose sum is 1."""
    reach = max(1, math.ceil(_REACH * sigma))
    weights = exact.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    found: Float32 = (weights / math.fsum(weights)).astype(np.float32)
    return found
