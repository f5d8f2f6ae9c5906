"""Measurement of the whiteness of a set of images.

Knows: the radial power spectrum and the correlation of colours, measured by a Fourier transform under a Hann
window, independently of the whitening filter. Does not know: filters, files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.preprocessing.whitening import Binning, Float32, Float64, rings


@dataclass(frozen=True)
class Whiteness:
    """Radial spectrum and colour correlation of a set of images.

    Args:
        frequencies: Radial frequencies, cycles per pixel.
        radial: Mean power of all channels at each frequency, relative to that in ``band``, decibels.
        band: Band in which the spectrum should be flat, cycles per pixel.
        deviation: Maximum distance of ``radial`` from 0 dB inside the band, decibels.
        colour_correlation: Maximum absolute correlation between two channels over all pixels; 0 for grey.
        images: Number of images measured.
    """

    frequencies: list[float]
    radial: list[float]
    band: tuple[float, float]
    deviation: float
    """Maximum distance of ``radial`` from 0 dB inside the band, decibels."""
    colour_correlation: float
    images: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for events and reports."""
        return asdict(self)


def measured_band(height: int, width: int, cutoff: float) -> tuple[float, float]:
    """Return the nominally flat band, cycles per pixel.

    It extends from two cycles per smaller side to ``cutoff`` times 0.5.
    """
    return 2 / min(height, width), cutoff / 2


def radial_power(images: Float32, radii: Float64) -> Float64:
    """Return the mean power of all channels in each ring; white noise of power 1 gives 1."""
    height, width = images.shape[2:]
    window = np.outer(_hann(height), _hann(width))
    window /= np.sqrt((window**2).sum())
    binning = Binning(np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]), radii)
    counted = np.ones(height * width)
    counted[0] = 0
    power = np.zeros(height * width)
    for image in images:
        centred = image - image.mean((1, 2), keepdims=True)
        spectrum = np.fft.fft2(centred * window)
        power += (spectrum.real**2 + spectrum.imag**2).mean(0).reshape(-1)
    counts = binning.sums(binning.ordered(counted)) * len(images)
    mean: Float64 = binning.sums(binning.ordered(power * counted)) / np.where(counts > 0, counts, 1)
    return mean


def measure(images: Float32, cutoff: float) -> Whiteness:
    """Measure the radial spectrum and colour correlation of images (image, channel, y, x), whitened up to
    ``cutoff``, a fraction of the highest frequency.
    """
    height, width = images.shape[2:]
    radii = rings(height, width)
    power = radial_power(images, radii)
    low, high = measured_band(height, width, cutoff)
    inside = (radii >= low - 1e-9) & (radii <= high + 1e-9)
    reference = float(power[inside].mean()) if inside.any() else float(power.mean())
    decibels = 10 * np.log10(np.maximum(power, 1e-12 * max(reference, 1e-300)) / max(reference, 1e-300))
    return Whiteness(
        frequencies=radii.tolist(),
        radial=decibels.tolist(),
        band=(low, high),
        deviation=float(np.abs(decibels[inside]).max()) if inside.any() else 0.0,
        colour_correlation=_colour_correlation(images),
        images=len(images),
    )


def _hann(extent: int) -> NDArray[np.float64]:
    """Return a Hann window without zeros at its ends."""
    return np.sin(np.pi * (np.arange(extent) + 0.5) / extent) ** 2


def _colour_correlation(images: Float32) -> float:
    channels = images.shape[1]
    if channels == 1:
        return 0.0
    values = images.transpose(1, 0, 2, 3).reshape(channels, -1).astype(np.float64)
    values -= values.mean(1, keepdims=True)
    covariance = values @ values.T
    spread = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / np.outer(spread, spread)
    return float(np.abs(correlation[~np.eye(channels, dtype=bool)]).max())
