"""Whitening: a linear filter that makes a set's spectrum flat and its colours uncorrelated.

Knows: cosine transforms, cross-spectra of colours, the estimation of a filter from them. Does not know:
files, other steps of the preparation.

A full covariance of 120,000 dimensions is infeasible, but that of photographs is nearly stationary and
isotropic: one C x C matrix of colour covariance at each spatial frequency describes almost all of it. The
filter is applied to the cosine transform (DCT-II) of the image. This equals a convolution of the image
mirrored at its edges, so opposite edges never interact. Frequencies are in cycles per pixel; the highest is
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

NYQUIST = 0.5
"""The highest frequency along an axis (Nyquist), cycles per pixel."""
CORNER = NYQUIST * 2**0.5
"""The highest frequency, along the diagonal."""
ROLL_OFF = 1.25
"""Ratio of the frequency where the filter reaches zero to the end of the band; a squared cosine in
between.
"""
_FAST_FROM = 64
"""Minimum extent at which SciPy's fast transform is used instead of a matrix product.

A forward transform of a colour image of 200 x 200 takes 0.34 instead of 0.92 ms; 0.08 and 0.12 ms at 96; 0.02
and 0.02 ms at 48. Torch's Fourier transform takes 0.23 ms, but its import 1.2 s.
"""


@dataclass(frozen=True)
class Whitening:
    """A colour matrix at each radial frequency: linear between `radii`, constant beyond their ends.

    Args:
        radii: (ring,) cycles per pixel, ascending.
        matrices: (ring, channel out, channel in).
    """

    radii: Float64
    matrices: Float64

    def state(self) -> dict[str, Any]:
        """Return the complete state as JSON values, without loss."""
        return {"radii": self.radii.tolist(), "matrices": self.matrices.tolist()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Whitening:
        """Restore a filter from `state`. Raises ValueError if matrices and radii do not match."""
        radii, matrices = (np.array(state[name], np.float64) for name in ("radii", "matrices"))
        if radii.ndim != 1 or matrices.ndim != 3 or len(radii) != len(matrices) or not radii.size:
            raise ValueError(f"{radii.shape} radii and {matrices.shape} matrices do not match")
        return cls(radii, matrices)

    def frequency_matrices(self, height: int, width: int) -> Float32:
        """Return the matrices at cosine frequencies up to the last nonzero one: (channel out, channel in,
        y, x).
        """
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
    """Return the radii of measured spectra: one cycle per smaller side apart, up to the corner."""
    step = 1 / min(height, width)
    return np.arange(1, int(np.ceil(CORNER / step)) + 1, dtype=np.float64) * step


def knots(height: int, width: int) -> Float64:
    """Return the radii of a filter: `rings`, the constant, and the half cycle, which is the strongest."""
    return np.concatenate([[0, 0.5 / min(height, width)], rings(height, width)])


def roll_off(radii: Float64, band: float) -> Float64:
    """Return 1 up to ``band`` (cycles per pixel), then a squared cosine down to 0."""
    part = np.clip((radii - band) / (band * (ROLL_OFF - 1)), 0, 1)
    taper: Float64 = np.cos(part * np.pi / 2) ** 2
    return taper


@lru_cache(maxsize=16)
def cosines(extent: int) -> Float32:
    """Return the orthonormal DCT-II: (frequency, position)."""
    frequency, position = np.arange(extent)[:, None], np.arange(extent)[None, :]
    matrix = np.cos(np.pi * frequency * (position + 0.5) / extent) * np.sqrt(2 / extent)
    matrix[0] /= np.sqrt(2)
    single: Float32 = matrix.astype(np.float32)
    return single


def cosine_radii(height: int, width: int) -> Float64:
    """Return the radial frequency of every cosine coefficient: (y, x), cycles per pixel."""
    return np.hypot(np.arange(height)[:, None] / (2 * height), np.arange(width)[None, :] / (2 * width))


def filtered(samples: Float32, grid: Float32) -> Float32:
    """Apply a filter from `Whitening.frequency_matrices` to images (image, channel, y, x)."""
    spectrum = _forward(_forward(samples, 3, grid.shape[3]), 2, grid.shape[2])
    mixed = np.empty_like(spectrum)
    scratch = np.empty_like(spectrum[:, 0])
    for out, row in enumerate(grid):
        np.multiply(spectrum[:, 0], row[0], out=mixed[:, out])
        for channel in range(1, len(row)):
            np.multiply(spectrum[:, channel], row[channel], out=scratch)
            mixed[:, out] += scratch
    return _backward(_backward(mixed, 2, samples.shape[2]), 3, samples.shape[3])


def _forward(values: Float32, axis: int, last: int) -> Float32:
    """Return the lowest ``last`` coefficients of the cosine transform along axis 2 or 3."""
    extent = values.shape[axis]
    if extent < _FAST_FROM:
        rows = cosines(extent)[:last]
        product: Float32 = np.matmul(values, rows.T) if axis == 3 else np.matmul(rows, values)
        return product
    import scipy.fft

    found: Float32 = scipy.fft.dct(values, axis=axis, norm="ortho")
    return found[..., :last] if axis == 3 else found[:, :, :last]


def _backward(values: Float32, axis: int, extent: int) -> Float32:
    """Invert `_forward`, to ``extent`` values."""
    if extent < _FAST_FROM:
        rows = cosines(extent)[: values.shape[axis]]
        product: Float32 = np.matmul(values, rows) if axis == 3 else np.matmul(rows.T, values)
        return product
    import scipy.fft

    found: Float32 = scipy.fft.idct(values, n=extent, axis=axis, norm="ortho")
    return found


class Binning:
    """Sums over rings; a coefficient between two of ``radii`` contributes to both, by its distance."""

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
        """Return values (..., coefficient) in the order that `sums` expects."""
        return values[..., self._order]

    def sums(self, ordered: NDArray[Any]) -> NDArray[Any]:
        """Sum ordered values (..., coefficient) to (..., ring)."""
        whole = np.add.reduceat(ordered, self._starts, axis=-1)
        upper = np.add.reduceat(ordered * self._part, self._starts, axis=-1)
        sums = np.zeros((*ordered.shape[:-1], self._rings + 1), ordered.dtype)
        sums[..., self._filled] = whole - upper
        sums[..., self._filled + 1] += upper
        return sums[..., :-1]

    def means(self, ordered: NDArray[Any]) -> NDArray[Any]:
        """Return weighted means over each ring; 0 for an empty ring."""
        counts = self.counts
        means: NDArray[Any] = self.sums(ordered) / np.where(counts > 0, counts, 1).astype(ordered.dtype)
        return means

    @cached_property
    def counts(self) -> Float64:
        """Total weight of each ring: (ring,)."""
        counts: Float64 = self.sums(np.ones(len(self._order)))
        return counts


@dataclass(frozen=True)
class Probe:
    """The cosine coefficients from which spectra are estimated.

    They are all low ones and a subset of the others, each of which represents its neighbours. At 200 pixels
    one in nine is used.
    """

    rows: Float32
    """Cosines along y: (frequency, position)."""
    columns: Float32
    """Cosines along x."""
    radii: Float64
    """Radii of the `knots` near which coefficients exist: (ring,)."""
    means: Float32
    """Weight of each coefficient in the mean of each ring: (coefficient, ring)."""
    share: Float64
    """Fraction of all coefficients that each ring represents; sums to 1."""


@lru_cache(maxsize=4)
def probe(height: int, width: int) -> Probe:
    """Return the probe for images of one size."""
    (ys, tall), (xs, wide) = _select_frequencies(height), _select_frequencies(width)
    radius = cosine_radii(height, width)[np.ix_(ys, xs)].reshape(-1)
    counts = np.outer(tall, wide).reshape(-1)
    radii = knots(height, width)
    place = np.interp(radius, radii, np.arange(len(radii)))
    hats = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(len(radii))[None, :])) * counts[:, None]
    filled = hats.sum(0) > 0
    total = hats[:, filled].sum(0)
    return Probe(
        rows=cosines(height)[ys],
        columns=cosines(width)[xs],
        radii=radii[filled],
        means=(hats[:, filled] / total).astype(np.float32),
        share=total / total.sum(),
    )


def _select_frequencies(extent: int) -> tuple[NDArray[np.int64], Float64]:
    """Return selected frequencies and the number of frequencies that each represents.

    Selected are 0 ... 15, then every second to 31, then every fourth.
    """
    every = np.concatenate([np.arange(16), np.arange(16, 32, 2), np.arange(32, max(extent, 33), 4)])
    chosen = every[every < extent]
    edges = np.concatenate([[-0.5], (chosen[1:] + chosen[:-1]) / 2, [extent - 0.5]])
    return chosen, np.diff(edges)


def cross_spectra(samples: Float32) -> Float32:
    """Return each image's mean product of channels in each ring of `probe`.

    ``samples`` are (image, channel, y, x); the result is (image, ring, channel, channel).
    """
    images, channels, height, width = samples.shape
    chosen = probe(height, width)
    spectrum = np.matmul(chosen.rows, np.matmul(samples, chosen.columns.T))
    spectrum = spectrum.reshape(images, channels, len(chosen.means))
    found = np.empty((images, len(chosen.radii), channels, channels), np.float32)
    for a in range(channels):
        for b in range(a, channels):
            found[:, :, a, b] = found[:, :, b, a] = (spectrum[:, a] * spectrum[:, b]) @ chosen.means
    return found


def inverse_root(matrices: Float64, floor: float) -> Float64:
    """Return the symmetric inverse square root of each matrix, with eigenvalues clamped to ``floor``."""
    values, vectors = np.linalg.eigh(matrices)
    roots: Float64 = np.einsum("rae,re,rbe->rab", vectors, 1 / np.sqrt(np.maximum(values, floor)), vectors)
    return roots
