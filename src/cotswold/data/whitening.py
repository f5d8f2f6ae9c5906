"""Whitening: a linear filter that makes a set's spectrum flat and its colours uncorrelated.

Knows: cosine transforms, cross-spectra of colours, how a filter is estimated from them. Does not know: files,
pictures as such, what else is done to them.

A full covariance of 120,000 dimensions is out of reach, but that of photographs is nearly stationary and
isotropic: one C x C matrix of colour covariance at each spatial frequency says almost all of it. The filter
is applied to the cosine transform (DCT-II) of the picture, which is the same as a convolution of the picture
mirrored at its edges, so that opposite edges never meet. Frequencies are in cycles per pixel; the highest is
0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

TOP = 0.5
"""The highest frequency along an axis (Nyquist), cycles per pixel."""
CORNER = TOP * 2**0.5
"""The highest frequency of all, along the diagonal."""
ROLL_OFF = 1.25
"""The filter falls to zero, as a squared cosine, between the band's upper end and this many times it."""


@dataclass(frozen=True)
class Whitening:
    """A colour matrix at each radial frequency: linear between `radii`, constant beyond their ends.

    ``radii``: (ring,) cycles per pixel, ascending; ``matrices``: (ring, channel out, channel in).
    """

    radii: Float64
    matrices: Float64

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can keep it without loss."""
        return {"radii": self.radii.tolist(), "matrices": self.matrices.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Whitening:
        """The inverse of `state`."""
        return cls(np.array(state["radii"], np.float64), np.array(state["matrices"], np.float64))

    def on_grid(self, height: int, width: int) -> Float32:
        """The matrices at cosine frequencies up to the last that passes: (channel out, channel in, y, x)."""
        radius = cosine_radii(height, width).reshape(-1)
        flat = self.matrices.reshape(len(self.radii), -1)
        channels = self.matrices.shape[1]
        values: Float64 = np.stack([np.interp(radius, self.radii, column) for column in flat.T])
        grid = values.reshape(channels, channels, height, width).astype(np.float32)
        passing = (grid != 0).any((0, 1))
        last_y = int(np.flatnonzero(passing.any(1))[-1]) + 1 if passing.any() else 1
        last_x = int(np.flatnonzero(passing.any(0))[-1]) + 1 if passing.any() else 1
        return np.ascontiguousarray(grid[:, :, :last_y, :last_x])


def rings(height: int, width: int) -> Float64:
    """Radii of measured spectra: one cycle per smaller side apart, up to the corner."""
    step = 1 / min(height, width)
    return np.arange(1, int(np.ceil(CORNER / step)) + 1, dtype=np.float64) * step


def knots(height: int, width: int) -> Float64:
    """Radii of a filter: those of `rings`, and below them the constant and the half cycle, the strongest of
    all."""
    return np.concatenate([[0, 0.5 / min(height, width)], rings(height, width)])


def roll_off(radii: Float64, band: float) -> Float64:
    """1 up to ``band`` (cycles per pixel), then a squared cosine down to 0."""
    part = np.clip((radii - band) / (band * (ROLL_OFF - 1)), 0, 1)
    taper: Float64 = np.cos(part * np.pi / 2) ** 2
    return taper


@lru_cache(maxsize=16)
def cosines(extent: int) -> Float32:
    """The orthonormal DCT-II: (frequency, position)."""
    frequency, position = np.arange(extent)[:, None], np.arange(extent)[None, :]
    matrix = np.cos(np.pi * frequency * (position + 0.5) / extent) * np.sqrt(2 / extent)
    matrix[0] /= np.sqrt(2)
    single: Float32 = matrix.astype(np.float32)
    return single


def cosine_radii(height: int, width: int) -> Float64:
    """The radial frequency of every cosine coefficient: (y, x), cycles per pixel."""
    return np.hypot(np.arange(height)[:, None] / (2 * height), np.arange(width)[None, :] / (2 * width))


def transformed(pictures: Float32) -> Float32:
    """Cosine transform of (image, channel, y, x)."""
    height, width = pictures.shape[2:]
    spectrum: Float32 = np.matmul(cosines(height), np.matmul(pictures, cosines(width).T))
    return spectrum


def filtered(pictures: Float32, grid: Float32) -> Float32:
    """Pictures (image, channel, y, x) with a filter from `Whitening.on_grid`."""
    rows, columns = cosines(pictures.shape[2])[: grid.shape[2]], cosines(pictures.shape[3])[: grid.shape[3]]
    spectrum = np.matmul(rows, np.matmul(pictures, columns.T))
    mixed = np.empty_like(spectrum)
    scratch = np.empty_like(spectrum[:, 0])
    for out, row in enumerate(grid):
        np.multiply(spectrum[:, 0], row[0], out=mixed[:, out])
        for channel in range(1, len(row)):
            np.multiply(spectrum[:, channel], row[channel], out=scratch)
            mixed[:, out] += scratch
    white: Float32 = np.matmul(rows.T, np.matmul(mixed, columns))
    return white


class Binning:
    """Sums over rings: a coefficient between two of ``radii`` counts for both, by its distance."""

    def __init__(self, radius: Float64, radii: Float64) -> None:
        edges = np.append(radii, radii[-1] + 1)
        flat = np.clip(radius.reshape(-1), radii[0], radii[-1])
        below = np.searchsorted(edges, flat, side="right") - 1
        self._order = np.argsort(below, kind="stable")
        self._rings = len(radii)
        self._filled, self._starts = np.unique(below[self._order], return_index=True)
        part = (flat - edges[below]) / (edges[below + 1] - edges[below])
        self._part = part[self._order].astype(np.float32)

    def ordered(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values (..., coefficient) as `sums` takes them."""
        return values[..., self._order]

    def sums(self, ordered: NDArray[Any]) -> NDArray[Any]:
        """(..., coefficient), ordered, to (..., ring)."""
        whole = np.add.reduceat(ordered, self._starts, axis=-1)
        upper = np.add.reduceat(ordered * self._part, self._starts, axis=-1)
        sums = np.zeros((*ordered.shape[:-1], self._rings + 1), ordered.dtype)
        sums[..., self._filled] = whole - upper
        sums[..., self._filled + 1] += upper
        return sums[..., :-1]

    def means(self, ordered: NDArray[Any]) -> NDArray[Any]:
        """As `sums`, divided by how much counts for each ring; 0 for an empty ring."""
        counts = self.counts
        means: NDArray[Any] = self.sums(ordered) / np.where(counts > 0, counts, 1).astype(ordered.dtype)
        return means

    @cached_property
    def counts(self) -> Float64:
        """How much counts for each ring: (ring,)."""
        counts: Float64 = self.sums(np.ones(len(self._order)))
        return counts


@lru_cache(maxsize=4)
def cosine_binning(height: int, width: int) -> Binning:
    """Of cosine coefficients, over `knots`."""
    return Binning(cosine_radii(height, width), knots(height, width))


def cross_spectra(spectrum: Float32) -> Float32:
    """Each picture's mean product of channels in each of `knots`: (image, ring, channel, channel).

    ``spectrum``: cosine transforms (image, channel, y, x).
    """
    images, channels, height, width = spectrum.shape
    binning = cosine_binning(height, width)
    ordered = binning.ordered(spectrum.reshape(images, channels, height * width))
    found = np.empty((images, len(binning.counts), channels, channels), np.float32)
    for a in range(channels):
        for b in range(a, channels):
            found[:, :, a, b] = found[:, :, b, a] = binning.means(ordered[:, a] * ordered[:, b])
    return found


def inverse_root(matrices: Float64, floor: float) -> Float64:
    """The symmetric inverse square root of each matrix, its eigenvalues held above ``floor``."""
    values, vectors = np.linalg.eigh(matrices)
    roots: Float64 = np.einsum("rae,re,rbe->rab", vectors, 1 / np.sqrt(np.maximum(values, floor)), vectors)
    return roots
