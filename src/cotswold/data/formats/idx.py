"""MNIST's idx format, plain or gzipped.

Knows: the header, the label file of an image file. Does not know: what the images show.
"""

from __future__ import annotations

import math
import re
import struct
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import bytes_in, open_binary, size_of
from cotswold.data.sources.arrays import ArraySource, ImageArray, select_arrays
from cotswold.data.sources.base import Source
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.file_names import Labels, split_named
from cotswold.errors import SourceError, UnlabelledError

_IMAGES = re.compile(r"^(?P<split>.+?)[-_]images?[-_.]idx3[-_.]ubyte(\.gz)?$")
_UBYTE = 0x08


def is_images(name: str) -> bool:
    """True for the name of an MNIST image file, such as `train-images-idx3-ubyte.gz`."""
    return _IMAGES.match(name) is not None


def open_idx(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    """Open one file of images, or a folder with several splits; label files are in the same folder."""
    files = [where] if where.is_file() else sorted(path for path in where.iterdir() if is_images(path.name))
    parts = []
    for path in files:
        match = _IMAGES.match(path.name)
        assert match is not None
        count = _shape(path, 3)[0]
        marks = _labels_beside(path, count) if labels == "file" else None
        parts.append(
            ImageArray(path.name, count, split_named(match["split"]), partial(_read, path, 3), marks)
        )
    parts = select_arrays(parts, include, exclude, where)
    highest = max((int(p.labels.max(initial=0)) for p in parts if p.labels is not None), default=-1)
    names = [path.name for path in files]
    if labels == "file":
        names += [_label_file(path).name for path in files]
    others = ("idx", *((part.name, part.count) for part in parts))
    identity = ContentIdentity(where, files[0].parent, tuple(names), others)
    return ArraySource(parts, tuple(str(number) for number in range(highest + 1)), labels, identity)


def _labels_beside(images: Path, count: int) -> NDArray[np.int64]:
    path = _label_file(images)
    labels = _read(path, 1)
    if len(labels) != count:
        raise SourceError(f"{path} has {len(labels)} labels for {count} images; download both again")
    return labels.astype(np.int64)


def _label_file(images: Path) -> Path:
    """Return the label file of an image file. Raises UnlabelledError if it is missing."""
    stem = images.name.removesuffix(".gz").replace("images", "labels").replace("image", "label")
    stem = stem.replace("idx3", "idx1")
    for name in (stem, stem + ".gz"):
        if images.with_name(name).exists():
            return images.with_name(name)
    raise UnlabelledError(f"{images} has no label file {stem} next to it", "add the file")


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an idx file of unsigned bytes."""
    shape = _shape(path, dimensions)
    return bytes_in(path, math.prod(shape), _header_bytes(dimensions)).reshape(shape)


def _shape(path: Path, dimensions: int) -> tuple[int, ...]:
    """Return the shape in the header, if the size of the file agrees."""
    with open_binary(path) as file:
        head = file.read(_header_bytes(dimensions))
    if head[:4] != bytes([0, 0, _UBYTE, dimensions]) or len(head) < _header_bytes(dimensions):
        raise SourceError(
            f"{path} is not an idx file of bytes with {dimensions} dimensions; download it again"
        )
    shape: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", head, 4)
    if 0 in shape[1:]:
        raise SourceError(f"{path} has shape {shape}: images without pixels; download it again")
    body = size_of(path) - len(head)
    if body != math.prod(shape):
        raise SourceError(
            f"{path} contains {body:,} bytes of values but its header says {shape}; download it again"
        )
    return shape


def _header_bytes(dimensions: int) -> int:
    return 4 + 4 * dimensions
