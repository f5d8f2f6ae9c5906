"""Warping of images: affine maps, a smooth displacement field, bilinear interpolation.

Knows: float32 arrays (image, channel, y, x). Does not know: the transforms and their random numbers.

Every number is computed by the same operations in the same order, regardless of the rest of the batch, and
without fused multiply-adds, so the bits are the same on every processor. The NumPy code here is the reference
that the kernels of `cotswold.kernels.warp` match bit by bit, and the fallback where they cannot be compiled.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cotswold.data.augment import portable_math as exact
from cotswold.data.augment.geometric import Maps
from cotswold.data.augment.keyed_random import Float32, Keys, uniform
from cotswold.kernels import warp as kernels
from cotswold.kernels.available import backend, fallback_to_torch
from cotswold.kernels.warp import MAX_DISTANCE, Field, Images, PaddingMode

_REACH = 4.0
"""Deviations beyond which a Gaussian counts as 0."""
_LONGEST = 1 << 15
"""Sides of images whose pixels kernels number in 32 bits."""


def field(keys: Keys, stream: int, sigma: float, slopes: Maps) -> Field:
    """Return a displacement field: uniform numbers in -1..1, two per pixel, smoothed by a Gaussian.

    ``sigma`` is the deviation of the Gaussian in pixels; ``slopes`` (image, 2, 2) convert the smoothed
    numbers to displacements (y, x) in pixels.
    """
    return Field(
        np.ascontiguousarray(keys, np.uint64),
        stream,
        gaussian(sigma),
        np.ascontiguousarray(slopes, np.float32),
    )


def warped(values: Float32, maps: Maps, displacement: Field | None, fill: PaddingMode) -> Float32:
    """Return images (image, channel, y, x) sampled at other positions, by bilinear interpolation.

    ``maps`` lead from positions of the result, (y, x) from the centre, to those of the image;
    ``displacement`` is added. Positions farther away than `MAX_DISTANCE` pixels count as at that distance.
    """
    asked = Images(
        np.ascontiguousarray(values, np.float32), np.ascontiguousarray(maps, np.float32), displacement, fill
    )
    return _crop_result(asked)


@fallback_to_torch
def _crop_result(images: Images) -> Float32:
    if backend() != "llvm" or max(images.values.shape[2:]) >= _LONGEST:
        return warp_reference(images)
    found: Float32 = kernels.run(images, warp_reference)
    return found


def warp_reference(images: Images) -> Float32:
    """Reference implementation in NumPy."""
    values, fill = images.values, images.fill
    height, width = values.shape[2:]
    places = _origins(images.maps, height, width)
    if images.field is not None:
        places += _displacements(images.field, height, width)
    low = np.floor(places)
    part = places - low
    corners = low.clip(-MAX_DISTANCE, MAX_DISTANCE).astype(np.int64)
    rows, columns = (
        [_valid_indices(corners[:, axis] + step, size, fill) for step in (0, 1)]
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
    """Return the displacements (y, x) of positions: (image, 2, y, x)."""
    drawn = uniform(field.keys, field.stream, (2, height, width), -1.0, 1.0)
    smooth = smoothed(smoothed(drawn, field.taps, 3), field.taps, 2)
    slopes = field.slopes[:, :, :, None, None]
    found: Float32 = slopes[:, :, 0] * smooth[:, None, 0] + slopes[:, :, 1] * smooth[:, None, 1]
    return found


def _origins(maps: Float32, height: int, width: int) -> Float32:
    """Return the origin (y, x) of each pixel, from the corner of the image: (image, 2, y, x)."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2], np.float32)
    y = (np.arange(height, dtype=np.float32) - middle[0])[None, None, :, None]
    x = (np.arange(width, dtype=np.float32) - middle[1])[None, None, None, :]
    each = maps[:, :, :, None, None]
    moved = each[:, :, 0] * y + each[:, :, 1] * x
    found: Float32 = moved + (maps[:, :, 2] + middle)[:, :, None, None]
    return found


def _share(part: Float32, step: int) -> Float32:
    return part if step else np.float32(1) - part


def _valid_indices(at: np.ndarray, size: int, fill: str) -> tuple[np.ndarray, np.ndarray]:
    """Return valid indices, and whether each was inside before."""
    there = (at >= 0) & (at < size)
    if fill == "reflect" and size > 1:
        turned = np.abs(at) % (2 * size - 2)
        return np.minimum(turned, 2 * size - 2 - turned), there
    return at.clip(0, size - 1), there


def smoothed(values: Float32, taps: Float32, axis: int) -> Float32:
    """Convolve with ``taps`` along an axis; values beyond the edge count as 0."""
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
    """Return a Gaussian whose sum is 1."""
    reach = max(1, math.ceil(_REACH * sigma))
    weights = exact.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    found: Float32 = (weights / math.fsum(weights)).astype(np.float32)
    return found
