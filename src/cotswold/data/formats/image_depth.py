"""Images of which Pillow would decode a part only: colours of more than 8 bits, pages after the first.

Knows: Pillow's raw modes, tags of TIFF. Does not know: pixels, boxes of files.
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from cotswold.data.formats.box_depth import boxed_bits

_BOXED = ("AVIF", "HEIF", "JPEG2000")
_BLOCKS_OF_HALVES = 6
"""The texture compression BC6H, whose colours are numbers of 16 bits."""
_BITS, _KIND_OF_PAGE, _SAMPLE_FORMAT = 258, 254, 339
_BYTE_MAX = 255
_DEEP = (
    "convert the images to 8 bits, or save them as one .npy array (image, y, x, channel), which has one range"
)


def lost_part(image: Image.Image, file: Path | bytes) -> str | None:
    """Return a phrase on what Pillow would leave out of an image, with a remedy; None for a whole image.

    Pages of a TIFF that are smaller versions of another one do not count.

    Args:
        image: The opened image.
        file: The file from which it was opened.
    """
    is_deep = image.mode.startswith(("I", "F"))
    read = 16 if image.mode.startswith("I;16") else 8
    bits = _boxed_bits(file) if image.format in _BOXED else 8 if is_deep else _stored_bits(image)
    if bits > read:
        return f"its colours have {bits} bits, of which {read} would be read; {_DEEP}"
    pages = _full_pages(image)
    if pages > 1:
        return f"it has {pages} pages, of which one would be read; save each page as a file of its own"
    return None


def is_unsigned_32(image: Image.Image) -> bool:
    """True for a TIFF of unsigned integers of 32 bits, which Pillow reads as signed ones."""
    tags = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    return tags.get(_BITS) == (32,) and tags.get(_SAMPLE_FORMAT, (1,)) == (1,)


def _stored_bits(image: Image.Image) -> int:
    """Return the bits of a channel in the file; 8 if the format does not say."""
    if image.format == "TIFF":
        tags = getattr(image, "tag_v2", {})
        return int(max(tags.get(_BITS, (8,))))
    tiles = getattr(image, "tile", None) or []
    arguments = tiles[0][3] if tiles else ()
    if image.format == "PPM" and isinstance(arguments, tuple) and len(arguments) > 1:
        return int(arguments[1]).bit_length() if int(arguments[1]) > _BYTE_MAX else 8
    if image.format == "DDS" and arguments and tiles[0][0] == "bcn":
        return 16 if arguments[0] == _BLOCKS_OF_HALVES else 8
    raw = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return 16 if isinstance(raw, str) and ";16" in raw else 8


def _boxed_bits(file: Path | bytes) -> int:
    if isinstance(file, bytes):
        return boxed_bits(io.BytesIO(file))
    with file.open("rb") as opened:
        return boxed_bits(opened)


def _full_pages(image: Image.Image) -> int:
    """Return the number of pages of a TIFF at full resolution; 1 for other formats."""
    if image.format != "TIFF":
        return 1
    pages = getattr(image, "n_frames", 1)
    full = 1
    for page in range(1, pages):
        image.seek(page)
        full += not int(getattr(image, "tag_v2", {}).get(_KIND_OF_PAGE, 0)) & 1
    if pages > 1:
        image.seek(0)
    return full
