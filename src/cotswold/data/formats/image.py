"""Decoding of one image file to 8-bit pixels of one size.

Knows: decoding, EXIF rotation, colour modes, bombs and truncation, scaling and cropping. Does not know:
file locations, later transforms.
"""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from cotswold.data.formats.dicom_images import is_dicom, open_dicom
from cotswold.data.formats.image_depth import is_unsigned_32, lost_part
from cotswold.data.formats.intensity_range import Ranges
from cotswold.errors import MissingExtraError, SourceError

Colour = Literal["rgb", "grey"]
Pixels = NDArray[np.uint8]

PIXELS_MAX = 89_478_485
"""Larger images are rejected as decompression bombs (Pillow's own limit: a quarter of a GiB of RGB)."""
_FORMATS = (
    *("BMP", "GIF", "JPEG", "PPM", "PNG"),  # first, because for the others Pillow imports all decoders
    *("DIB", "AVIF", "DDS", "ICNS", "ICO", "IM", "JPEG2000", "MSP", "PCX", "PSD", "SGI", "TGA", "TIFF"),
    *("WEBP", "XBM", "XPM"),
)
"""Accepted formats, regardless of file names. EPS is excluded: Pillow would run Ghostscript."""
_ADDED = "HEIF"
"""A format that another package may register with Pillow."""
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)


class BrokenImageError(SourceError):
    """Raised for an image that cannot be read; `prepare` reports the image and continues."""


def open_image(name: str, file: Path | bytes) -> Image.Image:
    """Open an image and read its header; `cut` decodes the pixels.

    Raises BrokenImageError, also for an image of which Pillow would decode a part only.
    """
    try:
        if isinstance(file, Path) and not stat.S_ISREG(file.stat().st_mode):
            raise BrokenImageError(f"{name}: not a regular file")  # a pipe would block
        if is_dicom(name, file):
            return open_dicom(file)
        formats = (*_FORMATS, _ADDED) if _ADDED in Image.OPEN else _FORMATS
        image: Image.Image = Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, "r", formats)
    except (BrokenImageError, MissingExtraError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BrokenImageError(f"{name}: more than {PIXELS_MAX:,} pixels (a decompression bomb?)") from error
    except Exception as error:  # decoders raise exceptions of every kind for damaged files
        raise BrokenImageError(f"{name}: {_reason(error)}") from error
    width, height = image.size
    if width * height > PIXELS_MAX:
        image.close()
        raise BrokenImageError(
            f"{name}: {width} x {height} is more than {PIXELS_MAX:,} pixels (a decompression bomb?)"
        )
    try:
        lost = lost_part(image, file)
    except Exception as error:  # as above
        image.close()
        raise BrokenImageError(f"{name}: {_reason(error)}") from error
    if lost is not None:
        image.close()
        raise BrokenImageError(f"{name}: {lost}")
    return image


def cut(
    name: str, image: Image.Image, size: tuple[int, int], colour: Colour, ranges: Ranges | None = None
) -> Pixels:
    """Decode, rotate upright, scale to cover ``size`` (height, width) and crop the centre: (y, x, channel).

    JPEGs are decoded at a half, a quarter or an eighth if that still covers the size. Transparent pixels
    become white. Images with more than 8 bits are mapped by ``ranges``, or by their own range. Raises
    BrokenImageError.
    """
    height, width = size
    mode = "L" if colour == "grey" else "RGB"
    try:
        sideways = image.getexif().get(_ORIENTATION) in _SIDEWAYS
        image.draft(mode, (height, width) if sideways else (width, height))
        ImageOps.exif_transpose(image, in_place=True)
        eight = _opaque(shallow(name, image, ranges or Ranges()))
        coloured = eight if eight.mode == mode else eight.convert(mode)  # convert always copies
        scaled = coloured.resize((width, height), Image.Resampling.BICUBIC, box=_central(coloured.size, size))
        return np.asarray(scaled).reshape(height, width, -1)
    except BrokenImageError:
        raise
    except Exception as error:  # as above
        raise BrokenImageError(f"{name}: {_reason(error)}") from error
    finally:
        image.close()


def _central(source: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the largest central box of a (width, height) image with the proportions of ``size``."""
    width, height = source
    scale = max(size[0] / height, size[1] / width)
    half_y, half_x = min(height, size[0] / scale) / 2, min(width, size[1] / scale) / 2
    return width / 2 - half_x, height / 2 - half_y, width / 2 + half_x, height / 2 + half_y


def numbers(name: str, image: Image.Image) -> NDArray[Any] | None:
    """Return the values (y, x) of an upright image with more than 8 bits; None for other images.

    Raises BrokenImageError.
    """
    if not image.mode.startswith("I") and image.mode != "F":
        return None
    try:
        unsigned = is_unsigned_32(image)
        ImageOps.exif_transpose(image, in_place=True)
        found = np.array(image)
        return found.view(np.uint32) if unsigned else found
    except Exception as error:  # as above
        image.close()
        raise BrokenImageError(f"{name}: {_reason(error)}") from error


def shallow(name: str, image: Image.Image, ranges: Ranges) -> Image.Image:
    """Return the image with 8 bits per channel, mapped by ``ranges`` if it had more.

    Raises BrokenImageError if a value is infinite or NaN.
    """
    deep = numbers(name, image)
    if deep is None:
        return image
    image.close()
    levels = ranges.apply(deep)
    if levels is None:
        raise BrokenImageError(f"{name}: contains infinite or NaN values")
    return Image.fromarray(levels)


def _opaque(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits per channel without transparency."""
    if image.mode in ("RGB", "L", "1", "CMYK", "YCbCr", "HSV") and "transparency" not in image.info:
        return image
    clear = image.convert("RGBA")
    white = Image.new("RGBA", clear.size, "white")
    return Image.alpha_composite(white, clear)


def _reason(error: Exception) -> str:
    """Return a decoder's message in one line, without memory addresses."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return " ".join(str(error).split()) or type(error).__name__
