"""Geometric transforms: the origin in an image of each pixel of its variant.

Knows: maps of the plane, random numbers by key. Does not know: pixels, recipes.

A position is (y, x) in pixels from the centre of the image. `Move.before` returns, for each sample, the
affine map from positions in the variant to positions in the image; consecutive transforms combine to one map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from cotswold.data.augment import portable_math as exact
from cotswold.data.augment.keyed_random import Keys, uniform
from cotswold.errors import UserError
from cotswold.kernels.warp import PADDING_MODES, PaddingMode

Maps = NDArray[np.float64]
"""Affine maps (sample, 2, 3): a square matrix that multiplies (y, x), and a last column that is added."""


class Move(Protocol):
    """Interface of a geometric transform."""

    name: ClassVar[str]
    """Name of the transform in recipes."""

    @property
    def fill(self) -> PaddingMode:
        """The rule for pixels from outside the image."""

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """Return the maps from positions in the variant to positions in the image."""


@dataclass(frozen=True)
class Translation:
    """A shift by whole pixels, up to ``pixels`` in each direction, or up to a ``fraction`` of height and
    width.
    """

    name: ClassVar[str] = "translation"
    pixels: int | None = None
    fraction: float | None = None
    probability: float = 1.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        _check(self, (self.pixels is None) != (self.fraction is None), "give either pixels or fraction")
        _check(self, (self.pixels or 0) >= 0, f"pixels must be at least 0, got {self.pixels}")
        _check(self, 0 <= (self.fraction or 0) <= 1, f"fraction must be in 0..1, got {self.fraction}")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """See `Move.before`."""
        if self.fraction is None:
            most = [self.pixels or 0] * 2
        else:
            most = [int(self.fraction * size) for size in (height, width)]
        drawn = uniform(keys, stream, 3).astype(np.float64)
        return _select_maps(_shifted(drawn, most), drawn[:, 2], self.probability)


@dataclass(frozen=True)
class Flip:
    """Horizontal and vertical flips, each with its probability."""

    name: ClassVar[str] = "flip"
    horizontal: float = 0.5
    vertical: float = 0.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        _check_fill(self)
        for name, value in (("horizontal", self.horizontal), ("vertical", self.vertical)):
            if not 0 <= value <= 1:
                raise UserError(f"{self.name}: the probability {name} must be in 0..1, got {value:g}")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """See `Move.before`."""
        drawn = uniform(keys, stream, 2)
        found = identity_maps(len(keys))
        found[:, 0, 0] = np.where(drawn[:, 0] < self.vertical, -1, 1)
        found[:, 1, 1] = np.where(drawn[:, 1] < self.horizontal, -1, 1)
        return found


@dataclass(frozen=True)
class Rotation:
    """A rotation about the centre, up to ``degrees`` in each direction."""

    name: ClassVar[str] = "rotation"
    degrees: float
    probability: float = 1.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        _check(self, 0 <= self.degrees <= 180, f"degrees must be in 0..180, got {self.degrees:g}")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """See `Move.before`."""
        drawn = uniform(keys, stream, 2).astype(np.float64)
        angle = math.radians(self.degrees) * (2 * drawn[:, 0] - 1)
        return _select_maps(_rotation(angle), drawn[:, 1], self.probability)


@dataclass(frozen=True)
class Affine:
    """Scaling, stretching and shearing.

    ``scale`` is the range (least, greatest) of the factor of enlargement, ``aspect`` (at least 1) the maximum
    stretch of one axis relative to the other, and ``shear`` the maximum shear in degrees.
    """

    name: ClassVar[str] = "affine"
    scale: tuple[float, float] = (1.0, 1.0)
    aspect: float = 1.0
    shear: float = 0.0
    probability: float = 1.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        least, greatest = self.scale
        _check(
            self,
            0 < least <= greatest,
            f"scale must satisfy 0 < least <= greatest, got [{least:g}, {greatest:g}]",
        )
        _check(self, self.aspect >= 1, f"aspect must be at least 1, got {self.aspect:g}")
        _check(
            self, 0 <= self.shear < 90, f"shear must be at least 0 and below 90 degrees, got {self.shear:g}"
        )

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """See `Move.before`."""
        drawn = uniform(keys, stream, 4).astype(np.float64)
        scale = exact.exp(_scale_to_range(drawn[:, 0], *map(math.log, self.scale)))
        stretch = _stretch(self.aspect, drawn[:, 1])
        sine, cosine = exact.sine_cosine(math.radians(self.shear) * (2 * drawn[:, 2] - 1))
        lean = sine / cosine
        found = identity_maps(len(keys))
        found[:, 0, 0] = 1 / (scale * stretch)
        found[:, 1, 1] = stretch / scale
        found[:, 1, 0] = lean * found[:, 0, 0]
        return _select_maps(found, drawn[:, 3], self.probability)


@dataclass(frozen=True)
class RandomCrop:
    """A random crop, of the size of the image or enlarged to it.

    With ``padding``, the image is padded by that many pixels and a crop of its original size is taken. With
    ``area`` (least, greatest, as fractions of the image), a crop inside the image is enlarged; ``aspect``
    limits the change of the ratio of its sides.
    """

    name: ClassVar[str] = "random_crop"
    padding: int | None = None
    area: tuple[float, float] | None = None
    aspect: float = 1.0
    probability: float = 1.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        _check(self, (self.padding is None) != (self.area is None), "give either padding or area")
        _check(self, (self.padding or 0) >= 0, f"padding must be at least 0, got {self.padding}")
        least, greatest = self.area or (1.0, 1.0)
        _check(
            self,
            0 < least <= greatest <= 1,
            f"area must satisfy 0 < least <= greatest <= 1, got [{least:g}, {greatest:g}]",
        )
        _check(self, self.aspect >= 1, f"aspect must be at least 1, got {self.aspect:g}")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """See `Move.before`."""
        drawn = uniform(keys, stream, 5).astype(np.float64)
        if self.area is None:
            return _select_maps(_shifted(drawn, [self.padding or 0] * 2), drawn[:, 4], self.probability)
        side = np.sqrt(_scale_to_range(drawn[:, 0], *self.area))
        stretch = _stretch(self.aspect, drawn[:, 1])
        found = identity_maps(len(keys))
        for axis, (size, part) in enumerate(((height, side * stretch), (width, side / stretch))):
            part = np.minimum(part, 1)
            found[:, axis, axis] = part
            found[:, axis, 2] = (drawn[:, 2 + axis] - 0.5) * (1 - part) * size
        return _select_maps(found, drawn[:, 4], self.probability)


@dataclass(frozen=True)
class Elastic:
    """An elastic deformation (Simard, Steinkraus and Platt 2003).

    Displacements are uniform numbers in -1..1, smoothed by a Gaussian of ``sigma`` pixels, times ``alpha``
    pixels.
    """

    name: ClassVar[str] = "elastic"
    alpha: float
    sigma: float
    probability: float = 1.0
    fill: PaddingMode = "edge"

    def __post_init__(self) -> None:
        _check(self, self.alpha >= 0, f"alpha must be at least 0 pixels, got {self.alpha:g}")
        _check(
            self, 0 < self.sigma <= 100, f"sigma must be above 0 and at most 100 pixels, got {self.sigma:g}"
        )

    def slopes(self, keys: Keys, stream: int) -> Maps:
        """Return the factors of the smoothed numbers, (sample, 2, 2): ``alpha``, or 0 for unchanged
        samples.
        """
        drawn = uniform(keys, stream, 1)[:, 0]
        strengths = np.where(drawn < self.probability, self.alpha, 0.0)
        return strengths[:, None, None] * np.eye(2)


def identity_maps(count: int) -> Maps:
    """Return identity maps."""
    return np.tile(np.eye(2, 3), (count, 1, 1))


def compose(first: Maps, last: Maps) -> Maps:
    """Return the composition of maps: ``first``, then ``last``."""
    found = np.empty_like(first)
    found[:, :, :2] = times(last[:, :, :2], first[:, :, :2])
    found[:, :, 2] = times(last[:, :, :2], first[:, :, 2:])[:, :, 0] + last[:, :, 2]
    return found


def times(left: Maps, right: Maps) -> Maps:
    """Multiply small matrices element by element, with the same bits for one sample and for many."""
    return np.stack(
        [
            left[:, row, 0, None] * right[:, 0] + left[:, row, 1, None] * right[:, 1]
            for row in range(left.shape[1])
        ],
        axis=1,
    )


def _shifted(drawn: NDArray[np.float64], most: Sequence[int]) -> Maps:
    """Return shifts by whole pixels down and right, at most ``most`` pixels in each direction."""
    found = identity_maps(len(drawn))
    for axis, pixels in enumerate(most):
        found[:, axis, 2] = np.floor(drawn[:, axis] * (2 * pixels + 1)) - pixels
    return found


def _stretch(aspect: float, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return factors whose squares lie between 1 / ``aspect`` and ``aspect``, symmetric on a log scale."""
    return exact.exp(0.5 * exact.log(np.array(aspect)) * (2 * drawn - 1))


def _rotation(angle: NDArray[np.float64]) -> Maps:
    found = identity_maps(len(angle))
    sine, cosine = exact.sine_cosine(angle)
    found[:, 0, 0] = found[:, 1, 1] = cosine
    found[:, 1, 0] = sine
    found[:, 0, 1] = -found[:, 1, 0]
    return found


def _scale_to_range(drawn: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return low + (high - low) * drawn


def _select_maps(maps: Maps, drawn: NDArray[np.float64], probability: float) -> Maps:
    """Return the maps of drawn samples and the identity for others."""
    return np.where((drawn < probability)[:, None, None], maps, identity_maps(len(maps)))


def _check(step: Translation | Rotation | Affine | RandomCrop | Elastic, is_right: bool, why: str) -> None:
    """Raise UserError if a parameter is out of range."""
    if not is_right:
        raise UserError(f"{step.name}: {why}")
    if not 0 <= step.probability <= 1:
        raise UserError(f"{step.name}: probability must be in 0..1, got {step.probability:g}")
    _check_fill(step)


def _check_fill(step: Move | Elastic) -> None:
    if step.fill not in PADDING_MODES:
        raise UserError(f'{step.name}: fill "{step.fill}" is unknown; choose from {", ".join(PADDING_MODES)}')
