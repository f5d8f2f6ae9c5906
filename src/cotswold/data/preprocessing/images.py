"""Preparation of images for a network.

Knows: the settings (`Preparation`) and the function that applies them (`Transform`), once the whitening has
been estimated. Does not know: sources, stores.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.image import Colour, Pixels, cut
from cotswold.data.formats.intensity_range import Ranges
from cotswold.data.preprocessing.whitening import (
    NYQUIST,
    Float32,
    Whitening,
    cross_spectra,
    filtered,
    inverse_root,
    probe,
    roll_off,
)
from cotswold.data.sources.base import Kind
from cotswold.errors import UserError
from cotswold.files import MalformedError
from cotswold.geometry import MapShape

_BATCH_VALUES = 1 << 17
"""Values processed at once, so that they stay in cache."""
_DEVIATION_LEAST = 1.0
"""Minimum standard deviation for `per_image_standardise`: one of 255 grey levels."""
_QUANTISATION = 1 / 12 / 255**2
"""Variance of the rounding to 8 bits."""
_LIMIT = 1.25
"""Maximum root mean square of a whitened image; that of the set is about 1.

Without a limit a few drawings in pure colours outweigh all photographs: 1 % of Caltech-101 exceeds 2.5,
single values exceed 28.
"""
_HALF_MAX = 65504
"""The largest float16."""
_EMPTY = 1e-12
"""Minimum power that `unit_rms` divides by."""
_ROUNDS = 8
"""Iterations in which filter and scales are adapted to each other."""


@dataclass(frozen=True)
class Preparation:
    """Settings of the preparation of images, in the order in which they apply.

    Args:
        size: Height and width, pixels.
        colour: "rgb" or "grey".
        per_image_standardise: Subtract each image's mean and divide by its standard deviation.
        whiten: Whiten the images by a filter that is estimated from training images.
        whiten_cutoff: Cutoff of the whitening, as a fraction of the highest frequency.
        unit_rms: Scale each image to a root mean square of 1.
        dtype: Type of stored values, "float16" or "uint8".

    Raises:
        UserError: if a value is out of range.
    """

    size: tuple[int, int] = (200, 200)
    """Height and width, pixels."""
    colour: Colour = "rgb"
    per_image_standardise: bool = True
    whiten: bool = True
    whiten_cutoff: float = 0.7
    unit_rms: bool = False
    dtype: Literal["float16", "uint8"] = "float16"
    kind: ClassVar[Kind] = "images"

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise UserError(f"size must be at least 1 x 1 pixel, got {self.size[0]} x {self.size[1]}")
        if not 0 < self.whiten_cutoff <= 1:
            raise UserError(
                "whiten_cutoff must be above 0 and at most 1 (a fraction of the highest frequency), "
                f"got {self.whiten_cutoff}"
            )
        for value, allowed in ((self.colour, ("rgb", "grey")), (self.dtype, ("float16", "uint8"))):
            if value not in allowed:
                raise UserError(f"{value!r} is neither {allowed[0]!r} nor {allowed[1]!r}")

    @property
    def shape(self) -> MapShape:
        """Shape of a prepared image: (channel, y, x)."""
        return MapShape(3 if self.colour == "rgb" else 1, *self.size)

    @property
    def row(self) -> MapShape:
        """Shape of a stored image: equal to `shape`."""
        return self.shape

    @property
    def needs_sample(self) -> bool:
        """True if a parameter must be estimated from training images."""
        return self.whiten or (self.dtype == "uint8" and (self.per_image_standardise or self.unit_rms))

    def state(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "size": list(self.size)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Preparation:
        """Restore a preparation.

        Args:
            state: A value of `state`.
        """
        return cls(**{**state, "size": tuple(state["size"])})


@dataclass(frozen=True)
class Transform:
    """A preparation together with all parameters estimated from training images.

    Args:
        preparation: The settings.
        whitening: The estimated filter; None without whitening.
        scale: Factor of stored numbers: ``value = stored * scale + offset``.
        offset: Added to the scaled stored numbers.
        ranges: Value ranges of training images with more than 8 bits; empty if they had 8, and in older
            stores.
    """

    preparation: Preparation
    whitening: Whitening | None = None
    scale: float = 1.0
    offset: float = 0.0
    ranges: Ranges = field(default_factory=Ranges)
    """Value ranges of training images with more than 8 bits; empty if they had 8."""

    def __call__(self, image: Image.Image) -> Float32:
        """Return an image as a network reads it: float32 (channel, y, x).

        Args:
            image: Any image; it is decoded, scaled and cropped.

        Raises:
            BrokenImageError: if the image cannot be decoded.
        """
        values: Float32 = self.values(self.pixels("the image", image)[None])[0]
        return values

    def pixels(self, name: str, image: Image.Image) -> Pixels:
        """Decode, scale and crop an image.

        Args:
            name: Name of the image in messages.
            image: The image.

        Returns:
            uint8 (y, x, channel), before the transform.

        Raises:
            BrokenImageError: if the image cannot be decoded.
        """
        return cut(name, image, self.preparation.size, self.preparation.colour, self.ranges)

    def values(self, pixels: Pixels) -> Float32:
        """Transform pixels to what a network reads.

        Args:
            pixels: uint8 (image, y, x, channel), from `pixels`.

        Returns:
            float32 (image, channel, y, x).
        """
        images, height, width, channels = pixels.shape
        values = np.empty((images, channels, height, width), np.float32)
        for part in _parts(pixels):
            values[part] = self._preprocess(pixels[part])
        return values

    def prepared(self, pixels: Pixels) -> NDArray[Any]:
        """Transform pixels to stored values: `stored` of `values`, computed in blocks.

        Args:
            pixels: uint8 (image, y, x, channel), from `pixels`.

        Returns:
            (image, channel, y, x) of the store's dtype.
        """
        images, height, width, channels = pixels.shape
        prepared = np.empty((images, channels, height, width), self.preparation.dtype)
        for part in _parts(pixels):
            prepared[part] = self.stored(self._preprocess(pixels[part]))
        return prepared

    def _preprocess(self, pixels: Pixels) -> Float32:
        chosen = self.preparation
        values = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32)
        if chosen.per_image_standardise:
            _standardise_each(values)
        else:
            values /= 255
        if self._grid is not None:
            values = filtered(values, self._grid)
        if chosen.unit_rms or self.whitening is not None:
            power = np.einsum("ncyx,ncyx->n", values, values) / values[0].size
            values *= _scales(chosen, power)[:, None, None, None]
        return values

    @cached_property
    def _grid(self) -> Float32 | None:
        return None if self.whitening is None else self.whitening.frequency_matrices(*self.preparation.size)

    def stored(self, values: Float32) -> NDArray[Any]:
        """Convert values to the store's dtype, with clipping.

        Args:
            values: float32, from `values`.
        """
        if self.preparation.dtype == "uint8":
            steps: NDArray[np.uint8] = np.rint(np.clip((values - self.offset) / self.scale, 0, 255)).astype(
                np.uint8
            )
            return steps
        return _halves(values)

    def restored(self, stored: NDArray[Any]) -> Float32:
        """Convert stored numbers to values: the inverse of `stored`, up to rounding.

        Args:
            stored: Numbers of the store's dtype, of any shape.

        Returns:
            float32 of the same shape.
        """
        if stored.dtype == np.float16:
            return _singles(stored)
        values = stored.astype(np.float32)
        if stored.dtype == np.uint8:
            values *= np.float32(self.scale)
            values += np.float32(self.offset)
        return values

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the estimate for users: none for images."""
        return ()

    def state(self) -> dict[str, Any]:
        """Return the complete state as JSON values, without loss; checkpoints and runs contain it."""
        return {
            "preparation": self.preparation.state(),
            "whitening": None if self.whitening is None else self.whitening.state(),
            "scale": self.scale,
            "offset": self.offset,
            **({"ranges": self.ranges.state()} if self.ranges else {}),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Transform:
        """Restore a transform.

        Args:
            state: A value of `state`.

        Raises:
            MalformedError: for anything else.
        """
        try:
            whitening = None if state["whitening"] is None else Whitening.from_state(state["whitening"])
            preparation = Preparation.from_state(state["preparation"])
            ranges = Ranges.from_state(state.get("ranges", {}))
            return cls(preparation, whitening, float(state["scale"]), float(state["offset"]), ranges)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UserError) as error:
            raise MalformedError(f"does not describe a transform ({error})") from error


def _parts(pixels: Pixels) -> list[slice]:
    """Return slices of images that are processed together."""
    batch = max(1, _BATCH_VALUES // pixels[0].size) if len(pixels) else 1
    return [slice(start, start + batch) for start in range(0, len(pixels), batch)]


def _halves(values: Float32) -> NDArray[np.float16]:
    """Convert to float16: to nearest, ties away from zero, overflow to the largest value.

    NumPy's conversion takes four times as long, as long as a cosine transform. After multiplication by
    2**-112 the exponent is that of float16, so the bits only need to be shifted.
    """
    bits = (np.clip(values, -_HALF_MAX, _HALF_MAX) * np.float32(2**-112)).view(np.uint32)
    bits += 0x1000
    signs = (bits >> 16).astype(np.uint16) & 0x8000
    bits >>= 13
    halves: NDArray[np.float16] = (bits.astype(np.uint16) & 0x7FFF | signs).view(np.float16)
    return halves


def _singles(halves: NDArray[np.float16]) -> Float32:
    """Convert finite float16 to float32 without loss, in blocks that stay in cache.

    NumPy's conversion takes five times as long, as long as all other steps of a batch. It also keeps small
    values in a thread that flushes denormal numbers, so it runs there.
    """
    if np.float32(2**-140) * np.float32(2**112) == 0:
        return halves.astype(np.float32)
    singles = np.empty(halves.shape, np.float32)
    source, target = np.ascontiguousarray(halves).view(np.int16).reshape(-1), singles.reshape(-1)
    for start in range(0, len(source), _BATCH_VALUES // 4):
        part = slice(start, start + _BATCH_VALUES // 4)
        bits = target[part].view(np.int32)
        bits[...] = source[part]
        bits <<= 13
        bits &= ~0x70000000  # copies of the sign in the exponent
        target[part] *= np.float32(2**112)
    return singles


def _standardise_each(values: Float32) -> None:
    """Subtract each image's mean and divide by its standard deviation, in place."""
    flat = values.reshape(len(values), -1)
    flat -= flat.mean(1, keepdims=True)
    deviation = np.sqrt(np.einsum("nv,nv->n", flat, flat) / flat.shape[1])
    flat /= np.maximum(deviation, _DEVIATION_LEAST)[:, None]


def spectra(preparation: Preparation, pixels: Pixels) -> Float32:
    """Return the statistics for `estimate`, from uint8 (image, y, x, channel).

    The result is (image, ring, channel, channel).
    """
    plain = Transform(replace(preparation, unit_rms=False))
    found = [cross_spectra(plain.values(pixels[part])) for part in _parts(pixels)]
    return np.concatenate(found) if found else cross_spectra(plain.values(pixels))


def unestimated_transform(preparation: Preparation) -> Transform:
    """Return the transform of a preparation without estimated parameters."""
    assert not preparation.needs_sample
    scale = 1 / 255 if preparation.dtype == "uint8" else 1.0
    return Transform(preparation, scale=scale)


def estimate(preparation: Preparation, sample: Float32, some: Pixels) -> Transform:
    """Estimate the transform from the `spectra` of training images and the pixels of some of them."""
    transform = Transform(preparation)
    if preparation.whiten:
        contrast = float(some.std()) / 255 if preparation.per_image_standardise else 1.0
        floor = _QUANTISATION / max(contrast, 1 / 255) ** 2
        transform = replace(transform, whitening=_whitening(preparation, sample, floor))
    if preparation.dtype == "uint8":
        transform = _quantised(transform, some)
    return transform


def _whitening(chosen: Preparation, sample: Float32, floor: float) -> Whitening:
    """Return the filter that whitens the sample to a root mean square near 1.

    The scaling after the filter shifts weight from strong images to weak ones, so filter and scales are
    computed in turn. An image's power after a filter follows from its cross-spectra.
    """
    radii, share = probe(*chosen.size).radii, probe(*chosen.size).share
    band = roll_off(radii, chosen.whiten_cutoff * NYQUIST)
    level = float(share @ band**2) or 1.0
    matrices = np.broadcast_to(np.eye(sample.shape[2]), (len(radii), *sample.shape[2:]))
    scales = np.ones(len(sample))
    for _ in range(_ROUNDS):
        mean = np.einsum("n,nrab->rab", scales**2 / len(sample), sample)
        matrices = inverse_root(mean, floor) / level**0.5
        squares = np.einsum("rca,rcb->rab", matrices, matrices) * (share * band**2)[:, None, None]
        power = np.einsum("rab,nrab->n", squares, sample) / sample.shape[2]
        scales = _scales(chosen, power)
    return Whitening(radii, matrices * band[:, None, None])


def _scales(chosen: Preparation, power: NDArray[Any]) -> NDArray[Any]:
    """Return the factors of whitened images, given their mean squares."""
    level = np.sqrt(np.maximum(power, _EMPTY))
    scales: NDArray[Any] = 1 / level if chosen.unit_rms else np.minimum(1, _LIMIT / level)
    return scales


def _quantised(transform: Transform, some: Pixels) -> Transform:
    """Return the transform with a uint8 scale that leaves all but one value in ten thousand unclipped."""
    reach = float(np.quantile(np.abs(transform.values(some)), 0.9999)) or 1.0
    return replace(transform, scale=reach / 127, offset=-reach * 128 / 127)
