"""Photometric transforms: changes of values without movement of pixels.

Knows: float32 arrays (image, channel, y, x), random numbers by key. Does not know: recipes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cotswold.data.augment import portable_math as exact
from cotswold.data.augment.keyed_random import Float32, Keys, normal, uniform
from cotswold.errors import UserError


class Change(Protocol):
    """Interface of a photometric transform."""

    def changed(self, values: Float32, keys: Keys, stream: int) -> Float32:
        """Return changed images (image, channel, y, x), each determined by its key."""


@dataclass(frozen=True)
class ColourJitter:
    """Random changes of brightness, contrast, saturation and hue.

    ``brightness`` is the maximum shift (0 to 10) in units of the image's standard deviation. ``contrast`` and
    ``saturation`` are the maximum relative changes (0 to 1). ``hue`` is the maximum rotation of colours about
    the grey axis in degrees.
    """

    name: ClassVar[str] = "colour_jitter"
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            most = 10.0 if name == "brightness" else 1.0
            if not 0 <= getattr(self, name) <= most:
                raise UserError(f"{self.name}: {name} = {getattr(self, name):g} is not in 0..{most:g}")
        if not 0 <= self.hue <= 180:
            raise UserError(f"{self.name}: hue must be in 0..180 degrees, got {self.hue:g}")
        _check_probability(self.name, self.probability)

    def changed(self, values: Float32, keys: Keys, stream: int) -> Float32:
        """See `Change.changed`."""
        drawn = uniform(keys, stream, 5)
        chosen = (drawn[:, 4] < self.probability)[:, None, None, None]
        drawn = 2 * drawn - 1
        shift, contrast, saturation = (drawn[:, i, None, None, None] for i in range(3))
        mean, spread = (each[:, None, None, None] for each in _moments(values))
        found = values
        if self.hue and values.shape[1] == 3:
            found = _rotate_hues(found, math.radians(self.hue) * drawn[:, 3].astype(np.float64))
        if self.saturation and values.shape[1] > 1:
            grey = sum(values[:, i : i + 1] for i in range(values.shape[1])) / np.float32(values.shape[1])
            found = grey + (1 + np.float32(self.saturation) * saturation) * (found - grey)
        if self.contrast:
            found = mean + (1 + np.float32(self.contrast) * contrast) * (found - mean)
        if self.brightness:
            found = found + np.float32(self.brightness) * shift * spread
        return np.where(chosen, found, values)


@dataclass(frozen=True)
class Cutout:
    """Set a random square of ``pixels`` per side to the mean of the image (DeVries and Taylor 2017)."""

    name: ClassVar[str] = "cutout"
    pixels: int
    probability: float = 1.0

    def __post_init__(self) -> None:
        if self.pixels < 1:
            raise UserError(f"{self.name}: pixels must be at least 1, got {self.pixels}")
        _check_probability(self.name, self.probability)

    def changed(self, values: Float32, keys: Keys, stream: int) -> Float32:
        """See `Change.changed`."""
        drawn = uniform(keys, stream, 3)
        covered = drawn[:, 2] < self.probability
        covers = []
        for axis, size in enumerate(values.shape[2:]):
            first = np.floor(drawn[:, axis] * size).astype(np.int64) - self.pixels // 2
            at = np.arange(size)
            covers.append((at >= first[:, None]) & (at < first[:, None] + self.pixels))
        cover = covers[0][:, None, :, None] & covers[1][:, None, None, :] & covered[:, None, None, None]
        mean = _moments(values)[0][:, None, None, None]
        found: Float32 = np.where(cover, mean, values)
        return found


@dataclass(frozen=True)
class Noise:
    """Independent normal noise of ``std`` times the image's standard deviation."""

    name: ClassVar[str] = "noise"
    std: float
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.std <= 10:
            raise UserError(f"{self.name}: std must be in 0..10, got {self.std:g}")
        _check_probability(self.name, self.probability)

    def changed(self, values: Float32, keys: Keys, stream: int) -> Float32:
        """See `Change.changed`."""
        covered = uniform(keys, stream + 1, 1)[:, 0] < self.probability
        spread = np.where(covered, _moments(values)[1], np.float32(0)) * np.float32(self.std)
        noise = normal(keys, stream, values.shape[1:])
        found: Float32 = values + spread[:, None, None, None] * noise
        return found


def _moments(values: Float32) -> tuple[Float32, Float32]:
    """Return mean and standard deviation of each image, summed in float64."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    mean = flat.mean(axis=1)
    spread = np.sqrt(((flat - mean[:, None]) ** 2).mean(axis=1))
    return mean.astype(np.float32), spread.astype(np.float32)


def _rotate_hues(values: Float32, angles: NDArray[np.float64]) -> Float32:
    """Rotate colours (image, 3, y, x) about the grey axis (Rodrigues 1840)."""
    sine, cosine = exact.sine_cosine(angles)
    same, other, lean = (1 + 2 * cosine) / 3, (1 - cosine) / 3, sine / np.sqrt(3.0)
    factors = [each.astype(np.float32)[:, None, None] for each in (same, other - lean, other + lean)]
    found = np.empty_like(values)
    for channel in range(3):
        parts = [values[:, (channel + step) % 3] * factors[step] for step in range(3)]
        found[:, channel] = parts[0] + parts[1] + parts[2]
    return found


def _check_probability(name: str, probability: float) -> None:
    if not 0 <= probability <= 1:
        raise UserError(f"{name}: probability must be in 0..1, got {probability:g}")
