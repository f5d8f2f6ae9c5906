"""Arrays of images: their axes and their range of values.

Knows: arrays. Does not know: scikit-learn, preparation, networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotswold.sklearn.samples import AnyArray

_LEVELS = 255


@dataclass(frozen=True)
class ImageFormat:
    """The form of the training images; other images must have the same.

    Args:
        height: Pixels.
        width: Pixels.
        channels: 1 or 3.
        low: The value that becomes black.
        high: The value that becomes white.
    """

    height: int
    width: int
    channels: int
    low: float
    high: float

    @classmethod
    def of(cls, images: AnyArray) -> ImageFormat:
        """Return the form of training images ``(image, y, x, channel)``.

        Bytes keep their range, 0 to 255; other types get that of the images.
        """
        height, width, channels = images.shape[1:]
        if images.dtype == np.uint8:
            return cls(height, width, channels, 0.0, float(_LEVELS))
        low, high = float(images.min()), float(images.max())
        return cls(height, width, channels, low, high if high > low else low + 1.0)

    def pixels(self, images: AnyArray) -> NDArray[np.uint8]:
        """Return images as bytes; raises ValueError for another size or number of channels."""
        expected = (self.height, self.width, self.channels)
        if images.shape[1:] != expected:
            raise ValueError(
                f"the images have {_words(images.shape[1:])}, but the fit had {_words(expected)}"
            )
        if images.dtype == np.uint8:
            return np.ascontiguousarray(images, np.uint8)
        scaled = (images.astype(np.float64) - self.low) * (_LEVELS / (self.high - self.low))
        levels: NDArray[np.uint8] = np.rint(np.clip(scaled, 0, _LEVELS)).astype(np.uint8)
        return levels


def as_images(given: AnyArray, shape: tuple[int, ...] | None) -> AnyArray:
    """Return images ``(image, y, x, channel)`` with 1 or 3 channels.

    Args:
        given: ``(image, y, x)``, ``(image, y, x, channel)``, ``(image, channel, y, x)``, or rows.
        shape: Shape of the image in a row: the axes of one of these, without the first.

    Raises:
        ValueError: For other shapes and for values that are not finite numbers.
    """
    if given.dtype == np.bool_:
        given = given.astype(np.uint8) * np.uint8(_LEVELS)
    if given.dtype.kind not in "uif":
        raise ValueError(f"images must be numbers, got an array of {given.dtype}")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise ValueError("the images contain NaN or infinity")
    if given.ndim == 2:
        given = _unflattened(given, shape)
    if given.ndim == 3:
        given = given[..., None]
    if given.ndim == 4 and given.shape[-1] not in (1, 3) and given.shape[1] in (1, 3):
        given = np.moveaxis(given, 1, -1)
    if given.ndim != 4 or given.shape[-1] not in (1, 3):
        raise ValueError(
            "images must have shape (n, height, width), (n, height, width, channels) or (n, channels, "
            f"height, width), with 1 or 3 channels; got {given.shape}"
        )
    if 0 in given.shape:
        raise ValueError(f"an array of shape {given.shape} has no images; give at least one")
    return given


def _unflattened(rows: AnyArray, shape: tuple[int, ...] | None) -> AnyArray:
    if shape is None:
        raise ValueError("rows need the shape of their images: StackFeatures(shape=(height, width))")
    if len(shape) not in (2, 3) or int(np.prod(shape)) != rows.shape[1]:
        raise ValueError(
            f"rows of {rows.shape[1]} values do not fit shape={tuple(shape)}, which has {int(np.prod(shape))}"
        )
    return rows.reshape(len(rows), *shape)


def _words(shape: tuple[int, ...]) -> str:
    height, width, channels = shape
    return f"{height} x {width} pixels of {channels} channel{'' if channels == 1 else 's'}"
