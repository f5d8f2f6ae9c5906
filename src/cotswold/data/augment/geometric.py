"""Transforms that move pixels: where in a picture each pixel of its variant comes from.

Knows: maps of the plane, random numbers by key. Does not know: pixels, recipes.

A place is (y, x) in pixels from the middle of the picture. `Move.before` gives, for each sample, the affine
map from a place in the variant to the place in the picture; moves one after the other are one map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cotswold.data.augment import portable_math as exact
from cotswold.data.augment.random import Keys, uniform
from cotswold.errors import UserError
from cotswold.kernels.warp import FILLS, Fill

Maps = NDArray[np.float64]
"""(sample, 2, 3): the place (y, x) is multiplied by the square part, and the last column added."""


class Move(Protocol):
    """What a move says of itself."""

    @property
    def fill(self) -> Fill:
        """What comes from outside."""

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """From places of the variant to places of the picture."""


@dataclass(frozen=True)
class Translation:
    """A shift by whole pixels, up to ``pixels`` each way, or up to a ``fraction`` of height and width."""

    pixels: int | None = None
    fraction: float | None = None
    probability: float = 1.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        _check(self, (self.pixels is None) != (self.fraction is None), "give either pixels or fraction")
        _check(self, (self.pixels or 0) >= 0, f"pixels = {self.pixels}: 0 or more")
        _check(self, 0 <= (self.fraction or 0) <= 1, f"fraction = {self.fraction}: 0 to 1")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """As `Move.before`."""
        if self.fraction is None:
            most = [self.pixels or 0] * 2
        else:
            most = [int(self.fraction * size) for size in (height, width)]
        drawn = uniform(keys, stream, 3).astype(np.float64)
        return _perhaps(_shifted(drawn, most), drawn[:, 2], self.probability)


@dataclass(frozen=True)
class Reflection:
    """Left and right exchanged, up and down exchanged, each with its probability."""

    horizontal: float = 0.5
    vertical: float = 0.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        _check_fill(self)
        for name, value in (("horizontal", self.horizontal), ("vertical", self.vertical)):
            if not 0 <= value <= 1:
                raise UserError(f"reflection: {name} = {value:g}: a probability, 0 to 1")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """As `Move.before`."""
        drawn = uniform(keys, stream, 2)
        found = unmoved(len(keys))
        found[:, 0, 0] = np.where(drawn[:, 0] < self.vertical, -1, 1)
        found[:, 1, 1] = np.where(drawn[:, 1] < self.horizontal, -1, 1)
        return found


@dataclass(frozen=True)
class Rotation:
    """A turn about the middle, up to ``degrees`` each way."""

    degrees: float
    probability: float = 1.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        _check(self, 0 <= self.degrees <= 180, f"degrees = {self.degrees:g}: 0 to 180")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """As `Move.before`."""
        drawn = uniform(keys, stream, 2).astype(np.float64)
        angle = math.radians(self.degrees) * (2 * drawn[:, 0] - 1)
        return _perhaps(_turned(angle), drawn[:, 1], self.probability)


@dataclass(frozen=True)
class Affine:
    """Larger or smaller by a factor of ``scale`` (least, greatest), stretched by up to ``aspect`` (1 or more)
    in one direction against the other, sheared by up to ``shear`` degrees."""

    scale: tuple[float, float] = (1.0, 1.0)
    aspect: float = 1.0
    shear: float = 0.0
    probability: float = 1.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        least, greatest = self.scale
        _check(self, 0 < least <= greatest, f"scale = [{least:g}, {greatest:g}]: least, greatest, above 0")
        _check(self, self.aspect >= 1, f"aspect = {self.aspect:g}: 1 or more")
        _check(self, 0 <= self.shear < 90, f"shear = {self.shear:g}: degrees, 0 to below 90")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """As `Move.before`."""
        drawn = uniform(keys, stream, 4).astype(np.float64)
        scale = exact.exp(_between(drawn[:, 0], *map(math.log, self.scale)))
        stretch = _stretch(self.aspect, drawn[:, 1])
        sine, cosine = exact.sine_cosine(math.radians(self.shear) * (2 * drawn[:, 2] - 1))
        lean = sine / cosine
        found = unmoved(len(keys))
        found[:, 0, 0] = 1 / (scale * stretch)
        found[:, 1, 1] = stretch / scale
        found[:, 1, 0] = lean * found[:, 0, 0]
        return _perhaps(found, drawn[:, 3], self.probability)


@dataclass(frozen=True)
class Crop:
    """A part of the picture with a margin of ``pad`` pixels, as large as the picture; or a part, enlarged to
    its size: of ``area`` (least, greatest, as parts of the whole), its sides in a ratio up to ``aspect``
    beside those of the whole; it lies inside wherever it fits."""

    pad: int | None = None
    area: tuple[float, float] | None = None
    aspect: float = 1.0
    probability: float = 1.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        _check(self, (self.pad is None) != (self.area is None), "give either pad or area")
        _check(self, (self.pad or 0) >= 0, f"pad = {self.pad}: 0 or more")
        least, greatest = self.area or (1.0, 1.0)
        _check(
            self, 0 < least <= greatest <= 1, f"area = [{least:g}, {greatest:g}]: least, greatest, up to 1"
        )
        _check(self, self.aspect >= 1, f"aspect = {self.aspect:g}: 1 or more")

    def before(self, keys: Keys, stream: int, height: int, width: int) -> Maps:
        """As `Move.before`."""
        drawn = uniform(keys, stream, 5).astype(np.float64)
        if self.area is None:
            return _perhaps(_shifted(drawn, [self.pad or 0] * 2), drawn[:, 4], self.probability)
        side = np.sqrt(_between(drawn[:, 0], *self.area))
        stretch = _stretch(self.aspect, drawn[:, 1])
        found = unmoved(len(keys))
        for axis, (size, part) in enumerate(((height, side * stretch), (width, side / stretch))):
            part = np.minimum(part, 1)
            found[:, axis, axis] = part
            found[:, axis, 2] = (drawn[:, 2 + axis] - 0.5) * (1 - part) * size
        return _perhaps(found, drawn[:, 4], self.probability)


@dataclass(frozen=True)
class Elastic:
    """Each pixel goes its own way, neighbours nearly the same one (Simard, Steinkraus, Platt 2003): uniform
    numbers in -1 to 1, smoothed by a Gaussian of ``sigma`` pixels, times ``alpha`` pixels."""

    alpha: float
    sigma: float
    probability: float = 1.0
    fill: Fill = "edge"

    def __post_init__(self) -> None:
        _check(self, self.alpha >= 0, f"alpha = {self.alpha:g}: pixels, 0 or more")
        _check(self, 0 < self.sigma <= 100, f"sigma = {self.sigma:g}: pixels, above 0, up to 100")

    def slopes(self, keys: Keys, stream: int) -> Maps:
        """What smoothed numbers are multiplied by: ``alpha``, or 0 for samples that are left as they are:
        (sample, 2, 2)."""
        drawn = uniform(keys, stream, 1)[:, 0]
        strengths = np.where(drawn < self.probability, self.alpha, 0.0)
        return strengths[:, None, None] * np.eye(2)


def unmoved(count: int) -> Maps:
    """Maps that change nothing."""
    return np.tile(np.eye(2, 3), (count, 1, 1))


def then(first: Maps, last: Maps) -> Maps:
    """The map that does the ``first`` and then the ``last``, of places."""
    found = np.empty_like(first)
    found[:, :, :2] = times(last[:, :, :2], first[:, :, :2])
    found[:, :, 2] = times(last[:, :, :2], first[:, :, 2:])[:, :, 0] + last[:, :, 2]
    return found


def times(left: Maps, right: Maps) -> Maps:
    """Products of small matrices, element by element: the same bits for one sample and for many."""
    return np.stack(
        [
            left[:, row, 0, None] * right[:, 0] + left[:, row, 1, None] * right[:, 1]
            for row in range(left.shape[1])
        ],
        axis=1,
    )


def _shifted(drawn: NDArray[np.float64], most: Sequence[int]) -> Maps:
    """Shifts by whole pixels, at most so many each way, down and right."""
    found = unmoved(len(drawn))
    for axis, pixels in enumerate(most):
        found[:, axis, 2] = np.floor(drawn[:, axis] * (2 * pixels + 1)) - pixels
    return found


def _stretch(aspect: float, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors whose squares are between 1 / ``aspect`` and ``aspect``, either way equally likely."""
    return exact.exp(0.5 * exact.log(np.array(aspect)) * (2 * drawn - 1))


def _turned(angle: NDArray[np.float64]) -> Maps:
    found = unmoved(len(angle))
    sine, cosine = exact.sine_cosine(angle)
    found[:, 0, 0] = found[:, 1, 1] = cosine
    found[:, 1, 0] = sine
    found[:, 0, 1] = -found[:, 1, 0]
    return found


def _between(drawn: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return low + (high - low) * drawn


def _perhaps(maps: Maps, drawn: NDArray[np.float64], probability: float) -> Maps:
    """The maps of those that are drawn; others stay."""
    return np.where((drawn < probability)[:, None, None], maps, unmoved(len(maps)))


def _check(step: Translation | Rotation | Affine | Crop | Elastic, is_right: bool, why: str) -> None:
    """Raise UserError where a parameter is out of its range."""
    name = type(step).__name__.lower()
    if not is_right:
        raise UserError(f"{name}: {why}")
    if not 0 <= step.probability <= 1:
        raise UserError(f"{name}: probability = {step.probability:g}: 0 to 1")
    _check_fill(step)


def _check_fill(step: Move | Elastic) -> None:
    if step.fill not in FILLS:
        raise UserError(f'{type(step).__name__.lower()}: fill = "{step.fill}": one of {", ".join(FILLS)}')
