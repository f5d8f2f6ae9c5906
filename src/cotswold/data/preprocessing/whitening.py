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
_FAST_FROM = 64
"""From this extent on SciPy's fast transform is quicker than a matrix product: 0.34 against 0.92 ms for a
colour picture of 200 x 200, forth; 0.08 against 0.12 at 96; 0.02 against 0.02 at 48.
Torch's Fourier transform of it takes 0.23 ms, but its import 1.2 s."""


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
        """The inverse of `state`; raises ValueError for matrices that do not belong to the radii."""
        radii, matrices = (np.array(state[name], np.float64) for name in ("radii", "matrices"))
        if radii.ndim != 1 or matrices.ndim != 3 or len(radii) != len(matrices) or not radii.size:
            raise ValueError(f"{radii.shape} radii and {matrices.shape} matrices do not go together")
        return cls(radii, matrices)

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


def filtered(pictures: Float32, grid: Float32) -> Float32:
    """Pictures (image, channel, y, x) with a filter from `Whitening.on_grid`."""
    spectrum = _forward(_forward(pictures, 3, grid.shape[3]), 2, grid.shape[2])
    mixed = np.empty_like(spectrum)
    scratch = np.empty_like(spectrum[:, 0])
    for out, row in enumerate(grid):
        np.multiply(spectrum[:, 0], row[0], out=mixed[:, out])
        for channel in range(1, len(row)):
            np.multiply(spectrum[:, channel], row[channel], out=scratch)
            mixed[:, out] += scratch
    return _backward(_backward(mixed, 2, pictures.shape[2]), 3, pictures.shape[3])


def _forward(values: Float32, axis: int, last: int) -> Float32:
    """The lowest ``last`` coefficients of the cosine transform along axis 2 or 3."""
    extent = values.shape[axis]
    if extent < _FAST_FROM:
        rows = cosines(extent)[:last]
        product: Float32 = np.matmul(values, rows.T) if axis == 3 else np.matmul(rows, values)
        return product
    import scipy.fft

    found: Float32 = scipy.fft.dct(values, axis=axis, norm="ortho")
    return found[..., :last] if axis == 3 else found[:, :, :last]


def _backward(values: Float32, axis: int, extent: int) -> Float32:
    """The inverse of `_forward`, to ``extent`` values."""
    if extent < _FAST_FROM:
        rows = cosines(extent)[: values.shape[axis]]
        product: Float32 = np.matmul(values, rows) if axis == 3 else np.matmul(rows.T, values)
        return product
    import scipy.fft

    found: Float32 = scipy.fft.idct(values, n=extent, axis=axis, norm="ortho")
    return found


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


@dataclass(frozen=True)
class Probe:
    """The cosine coefficients from which spectra are estimated: all low ones and some of the others, each
    standing for its neighbours too. At 200 pixels that is one in nine."""

    rows: Float32
    """Cosines along y: (frequency, position)."""
    columns: Float32
    """Cosines along x."""
    radii: Float64
    """Those of `knots` near which there are coefficients: (ring,)."""
    means: Float32
    """How much each coefficient counts for the mean in each ring: (coefficient, ring)."""
    share: Float64
    """The part of all coefficients that each ring stands for; sums to 1."""


@lru_cache(maxsize=4)
def probe(height: int, width: int) -> Probe:
    """Of pictures of one size."""
    (ys, tall), (xs, wide) = _thinned(height), _thinned(width)
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


def _thinned(extent: int) -> tuple[NDArray[np.int64], Float64]:
    """Frequencies 0 ... 15, then every second to 31, then every fourth; how many each of them stands for."""
    every = np.concatenate([np.arange(16), np.arange(16, 32, 2), np.arange(32, max(extent, 33), 4)])
    chosen = every[every < extent]
    edges = np.concatenate([[-0.5], (chosen[1:] + chosen[:-1]) / 2, [extent - 0.5]])
    return chosen, np.diff(edges)


def cross_spectra(pictures: Float32) -> Float32:
    """Each picture's mean product of channels in each ring of `probe`: (image, ring, channel, channel).

    ``pictures``: (image, channel, y, x).
    """
    images, channels, height, width = pictures.shape
    chosen = probe(height, width)
    spectrum = np.matmul(chosen.rows, np.matmul(pictures, chosen.columns.T))
    spectrum = spectrum.reshape(images, channels, len(chosen.means))
    found = np.empty((images, len(chosen.radii), channels, channels), np.float32)
    for a in range(channels):
        for b in range(a, channels):
            found[:, :, a, b] = found[:, :, b, a] = (spectrum[:, a] * spectrum[:, b]) @ chosen.means
    return found


def inverse_root(matrices: Float64, floor: float) -> Float64:
    """The symmetric inverse square root of each matrix, its eigenvalues held above ``floor``."""
    values, vectors = np.linalg.eigh(matrices)
    roots: Float64 = np.einsum("rae,re,rbe->rab", vectors, 1 / np.sqrt(np.maximum(values, floor)), vectors)
    return roots
