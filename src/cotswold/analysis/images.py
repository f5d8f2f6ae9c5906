"""Filters, stimuli and photographs as small images for a page.

Knows: colours of signed values, contact sheets, data URIs. Does not know: networks, pages.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]


def signed(values: Floats) -> NDArray[np.uint8]:
    """Return signed values ``(channel, y, x)`` as RGB ``(y, x, 3)``: 0 is mid-grey.

    One channel is shown in grey; of more than three channels, the first three principal components.
    """
    if len(values) not in (1, 3):
        flat = values.reshape(len(values), -1)
        axes = np.linalg.eigh(flat @ flat.T)[1][:, ::-1][:, :3]
        values = (axes.T @ flat).reshape(-1, *values.shape[1:])
        values = np.concatenate([values, np.zeros((max(0, 3 - len(values)), *values.shape[1:]), np.float32)])
    reach = float(np.quantile(np.abs(values), 0.995)) or float(np.abs(values).max()) or 1.0
    grey = np.clip(127.5 + 127.5 * values / reach, 0, 255).astype(np.uint8)
    return np.repeat(grey, 3, axis=0).transpose(1, 2, 0) if len(grey) == 1 else grey.transpose(1, 2, 0)


def contact_sheet(
    tiles: Sequence[NDArray[np.uint8]], columns: int | None = None, least: int = 300
) -> Image.Image:
    """Return RGB tiles ``(y, x, 3)`` in a grid, transparent between them, scaled up to ``least`` pixels."""
    height, width = tiles[0].shape[:2]
    columns = columns or ceil(sqrt(len(tiles)))
    lines = ceil(len(tiles) / columns)
    gap = 1
    sheet = np.zeros((lines * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for index, tile in enumerate(tiles):
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        sheet[top : top + height, left : left + width, :3] = tile
        sheet[top : top + height, left : left + width, 3] = 255
    times = max(1, least // sheet.shape[1])
    tiled = Image.fromarray(sheet, "RGBA")
    return tiled.resize((sheet.shape[1] * times, sheet.shape[0] * times), Image.Resampling.NEAREST)


def to_image(values: NDArray[np.uint8], least: int = 96) -> Image.Image:
    """Return an RGB array ``(y, x, 3)`` as an image, scaled up by an integer to at least ``least`` pixels."""
    times = max(1, ceil(least / max(values.shape[:2])))
    size = values.shape[1] * times, values.shape[0] * times
    return Image.fromarray(values, "RGB").resize(size, Image.Resampling.NEAREST)


def thumbnail(photograph: Image.Image, side: int = 96) -> Image.Image:
    """Return the square centre of a photograph."""
    small = photograph.convert("RGB")
    edge = min(small.size)
    left, top = (small.width - edge) // 2, (small.height - edge) // 2
    return small.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS)


def png_uri(image: Image.Image) -> str:
    """Return an image as a lossless data URI."""
    return _uri(image, "PNG", optimize=True)


def png_file_uri(path: Path) -> str:
    """Return a PNG file, unchanged, as a data URI."""
    return _address("PNG", path.read_bytes())


def jpeg_uri(image: Image.Image) -> str:
    """Return a photograph as a data URI."""
    return _uri(image.convert("RGB"), "JPEG", quality=80)


def _uri(image: Image.Image, kind: str, **options: int | bool) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return _address(kind, buffer.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
