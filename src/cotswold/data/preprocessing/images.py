"""Preparation: what is done to a picture before a network sees it.

Knows: the choices (`Preparation`) and, once the whitening has been estimated from a set, the function that
carries them out (`Transform`). Does not know: sources, stores.
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
    TOP,
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
"""Values that are worked on at a time, so that they stay in cache."""
_DEVIATION_LEAST = 1.0
"""The least standard deviation that contrast normalisation divides by: one of 255 grey levels."""
_QUANTISATION = 1 / 12 / 255**2
"""Variance of the rounding to 8 bits."""
_LIMIT = 1.25
"""The greatest root mean square of a whitened picture, where that of the set is about 1. Without a limit a
few drawings in pure colours outweigh all photographs: 1 % of Caltech-101 goes beyond 2.5, single values
beyond 28."""
_HALF_MAX = 65504
"""The largest float16."""
_EMPTY = 1e-12
"""The least power that `unit` divides by."""
_ROUNDS = 8
"""Times that filter and scales are adapted to each other."""


@dataclass(frozen=True)
class Preparation:
    """Choices, in the order in which they act; the fields mean what `[data]` of a recipe says."""

    size: tuple[int, int] = (200, 200)
    """Height and width, pixels."""
    colour: Colour = "rgb"
    contrast: bool = True
    whiten: bool = True
    band: float = 0.7
    unit: bool = False
    dtype: Literal["float16", "uint8"] = "float16"
    kind: ClassVar[Kind] = "pictures"

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise UserError(
                f"a size of {self.size[0]} x {self.size[1]} pixels leaves nothing; give 1 or more"
            )
        if not 0 < self.band <= 1:
            raise UserError(
                f"band = {self.band} is not a fraction of the highest frequency; give 0 < band <= 1"
            )
        for value, allowed in ((self.colour, ("rgb", "grey")), (self.dtype, ("float16", "uint8"))):
            if value not in allowed:
                raise UserError(f"{value!r} is neither {allowed[0]!r} nor {allowed[1]!r}")

    @property
    def shape(self) -> MapShape:
        """The map of one prepared picture."""
        return MapShape(3 if self.colour == "rgb" else 1, *self.size)

    @property
    def row(self) -> MapShape:
        """The map of what the store keeps for one picture: the same."""
        return self.shape

    @property
    def needs_sample(self) -> bool:
        """Whether something has to be estimated from training pictures."""
        return self.whiten or (self.dtype == "uint8" and (self.contrast or self.unit))

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "size": list(self.size)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Preparation:
        """The inverse of `state`."""
        return cls(**{**state, "size": tuple(state["size"])})


@dataclass(frozen=True)
class Transform:
    """A preparation with everything that was estimated from the training pictures.

    ``offset`` and ``scale`` turn stored numbers into values: ``value = stored * scale + offset``.
    """

    preparation: Preparation
    whitening: Whitening | None = None
    scale: float = 1.0
    offset: float = 0.0
    ranges: Ranges = field(default_factory=Ranges)
    """What is black and white in pictures of more than 8 bits, as in the training pictures; empty if those
    had 8."""

    def __call__(self, picture: Image.Image) -> Float32:
        """Any picture, as the network wants it: float32 (channel, y, x). Raises BrokenPictureError."""
        values: Float32 = self.values(self.pixels("the picture", picture)[None])[0]
        return values

    def pixels(self, name: str, picture: Image.Image) -> Pixels:
        """The decoded, scaled and cut picture, before its numbers are worked on: uint8 (y, x, channel)."""
        return cut(name, picture, self.preparation.size, self.preparation.colour, self.ranges)

    def values(self, pixels: Pixels) -> Float32:
        """What the network reads, from uint8 (image, y, x, channel): float32 (image, channel, y, x)."""
        images, height, width, channels = pixels.shape
        values = np.empty((images, channels, height, width), np.float32)
        for part in _parts(pixels):
            values[part] = self._worked(pixels[part])
        return values

    def prepared(self, pixels: Pixels) -> NDArray[Any]:
        """What the store keeps of uint8 (image, y, x, channel): `stored` of `values`, a few at a time."""
        images, height, width, channels = pixels.shape
        prepared = np.empty((images, channels, height, width), self.preparation.dtype)
        for part in _parts(pixels):
            prepared[part] = self.stored(self._worked(pixels[part]))
        return prepared

    def _worked(self, pixels: Pixels) -> Float32:
        chosen = self.preparation
        values = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32)
        if chosen.contrast:
            _normalise_contrast(values)
        else:
            values /= 255
        if self._grid is not None:
            values = filtered(values, self._grid)
        if chosen.unit or self.whitening is not None:
            power = np.einsum("ncyx,ncyx->n", values, values) / values[0].size
            values *= _scales(chosen, power)[:, None, None, None]
        return values

    @cached_property
    def _grid(self) -> Float32 | None:
        return None if self.whitening is None else self.whitening.on_grid(*self.preparation.size)

    def stored(self, values: Float32) -> NDArray[Any]:
        """Values as the store keeps them, clipped to what its dtype can hold."""
        if self.preparation.dtype == "uint8":
            steps: NDArray[np.uint8] = np.rint(np.clip((values - self.offset) / self.scale, 0, 255)).astype(
                np.uint8
            )
            return steps
        return _halves(values)

    def restored(self, stored: NDArray[Any]) -> Float32:
        """The inverse of `stored`, up to rounding."""
        values = stored.astype(np.float32)
        if stored.dtype == np.uint8:
            values *= np.float32(self.scale)
            values += np.float32(self.offset)
        return values

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know of the estimate: nothing, for pictures."""
        return ()

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can keep it without loss; a checkpoint or a run can carry it."""
        return {
            "preparation": self.preparation.state(),
            "whitening": None if self.whitening is None else self.whitening.state(),
            "scale": self.scale,
            "offset": self.offset,
            **({"ranges": self.ranges.state()} if self.ranges else {}),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Transform:
        """The inverse of `state`; raises MalformedError for anything else."""
        try:
            whitening = None if state["whitening"] is None else Whitening.from_state(state["whitening"])
            preparation = Preparation.from_state(state["preparation"])
            ranges = Ranges.from_state(state.get("ranges", {}))
            return cls(preparation, whitening, float(state["scale"]), float(state["offset"]), ranges)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UserError) as error:
            raise MalformedError(f"describes no transform ({error})") from error


def _parts(pixels: Pixels) -> list[slice]:
    """Ranges of pictures that are worked on together."""
    batch = max(1, _BATCH_VALUES // pixels[0].size) if len(pixels) else 1
    return [slice(start, start + batch) for start in range(0, len(pixels), batch)]


def _halves(values: Float32) -> NDArray[np.float16]:
    """To float16, to the nearest, ties away from zero, too large ones to the largest.

    NumPy's own conversion takes four times as long: as long as a cosine transform. Times 2**-112 the exponent
    is that of float16, and its bits only have to be moved.
    """
    bits = (np.clip(values, -_HALF_MAX, _HALF_MAX) * np.float32(2**-112)).view(np.uint32)
    bits += 0x1000
    signs = (bits >> 16).astype(np.uint16) & 0x8000
    bits >>= 13
    halves: NDArray[np.float16] = (bits.astype(np.uint16) & 0x7FFF | signs).view(np.float16)
    return halves


def _normalise_contrast(values: Float32) -> None:
    """Subtract each picture's mean and divide by its standard deviation, in place."""
    flat = values.reshape(len(values), -1)
    flat -= flat.mean(1, keepdims=True)
    deviation = np.sqrt(np.einsum("nv,nv->n", flat, flat) / flat.shape[1])
    flat /= np.maximum(deviation, _DEVIATION_LEAST)[:, None]


def spectra(preparation: Preparation, pixels: Pixels) -> Float32:
    """What `estimate` needs to know of pictures, from uint8 (image, y, x, channel): (image, ring, channel,
    channel)."""
    plain = Transform(replace(preparation, unit=False))
    found = [cross_spectra(plain.values(pixels[part])) for part in _parts(pixels)]
    return np.concatenate(found) if found else cross_spectra(plain.values(pixels))


def plain(preparation: Preparation) -> Transform:
    """The transform of a preparation that needs no sample."""
    assert not preparation.needs_sample
    scale = 1 / 255 if preparation.dtype == "uint8" else 1.0
    return Transform(preparation, scale=scale)


def estimate(preparation: Preparation, sample: Float32, some: Pixels) -> Transform:
    """The transform of a set, from the `spectra` of a sample of its training pictures and the pixels of
    some."""
    transform = Transform(preparation)
    if preparation.whiten:
        contrast = float(some.std()) / 255 if preparation.contrast else 1.0
        floor = _QUANTISATION / max(contrast, 1 / 255) ** 2
        transform = replace(transform, whitening=_whitening(preparation, sample, floor))
    if preparation.dtype == "uint8":
        transform = _quantised(transform, some)
    return transform


def _whitening(chosen: Preparation, sample: Float32, floor: float) -> Whitening:
    """The filter that makes the sample white, and of a root mean square near 1.

    The scaling after the filter shifts weight from strong pictures to weak ones, so filter and scales are
    found in turn; a picture's power after a filter follows from its cross-spectra.
    """
    radii, share = probe(*chosen.size).radii, probe(*chosen.size).share
    band = roll_off(radii, chosen.band * TOP)
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
    """What whitened pictures are multiplied by, given their mean squares."""
    level = np.sqrt(np.maximum(power, _EMPTY))
    scales: NDArray[Any] = 1 / level if chosen.unit else np.minimum(1, _LIMIT / level)
    return scales


def _quantised(transform: Transform, some: Pixels) -> Transform:
    """With the scale of uint8 that leaves all but one value in ten thousand unclipped."""
    reach = float(np.quantile(np.abs(transform.values(some)), 0.9999)) or 1.0
    return replace(transform, scale=reach / 127, offset=-reach * 128 / 127)
