"""Medical images in DICOM files, through pydicom.

Knows: rescaling to units of the modality, inverted grey. Does not know: Pillow's decoders, ranges.
"""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.errors import MissingExtraError, install

_PREAMBLE_BYTES = 128
_MARK = b"DICM"


def is_dicom(name: str, file: Path | bytes) -> bool:
    """True for a file with the suffix .dcm or the mark of DICOM."""
    if PurePosixPath(name).suffix.lower() in (".dcm", ".dicom"):
        return True
    return isinstance(file, bytes) and file[_PREAMBLE_BYTES : _PREAMBLE_BYTES + 4] == _MARK


def open_dicom(file: Path | bytes) -> Image.Image:
    """Return the image of a DICOM file: grey values of the modality, or 8-bit colours.

    Raises:
        MissingExtraError: without pydicom.
        ValueError: for several frames, a palette, and colours of more than 8 bits.
    """
    try:
        import pydicom
        from pydicom.pixels.processing import apply_modality_lut
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise MissingExtraError(f"DICOM files need pydicom; run {install('medical')}") from error
    found: Any = pydicom.dcmread(io.BytesIO(file) if isinstance(file, bytes) else file)
    frames = int(found.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise ValueError(
            f"it has {frames} frames, of which one would be read; save each as a file of its own"
        )
    if found.get("PhotometricInterpretation") == "PALETTE COLOR":
        raise ValueError("its numbers are places in a palette of colours; convert it to RGB of 8 bits")
    pixels: NDArray[Any] = pixel_array(found)  # converts YBR to RGB
    if pixels.ndim == 3:
        if pixels.dtype != np.uint8:
            raise ValueError(f"its colours are {pixels.dtype}; convert them to 8 bits")
        return Image.fromarray(pixels)
    if found.get("PhotometricInterpretation") == "MONOCHROME1":  # white is 0
        whole = (1 << int(found.BitsStored)) - 1
        pixels = whole - pixels if pixels.dtype.kind == "u" else -1 - pixels
    values: NDArray[Any] = apply_modality_lut(pixels, found)
    if values.dtype == np.uint8:
        return Image.fromarray(values)
    if values.dtype.kind == "f" and (values == np.rint(values)).all():
        values = values.astype(np.int32)
    return Image.fromarray(values.astype(np.int32 if values.dtype.kind in "iu" else np.float32))
