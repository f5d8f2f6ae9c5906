"""CIFAR-10's binary format, plain or gzipped: records of 1 label byte and 3,072 image bytes.

Knows: records, the names of the ten classes. Does not know: what the images show.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import bytes_in, size_of
from cotswold.data.sources.arrays import ArraySource, ImageArray, select_arrays
from cotswold.data.sources.base import Source
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.file_names import Labels, split_named
from cotswold.errors import SourceError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_BATCH = re.compile(r"^.*(data|train|test|val|valid|validation)[-_].*\.bin(\.gz)?$|^test\.bin(\.gz)?$")


def is_batch(name: str) -> bool:
    """True for the name of a CIFAR-10 batch: `data_batch_1.bin`, `cifar10_test_300.bin.gz`."""
    return _BATCH.match(name) is not None


def open_cifar(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    """Open one batch file, or a folder with several."""
    files = [where] if where.is_file() else sorted(path for path in where.iterdir() if is_batch(path.name))
    parts = []
    for path in files:
        records = _records(path)
        marks = records[:, 0].astype(np.int64)
        if marks.max(initial=0) >= len(CLASSES):
            raise SourceError(f"{path} has labels up to {marks.max()}; labels of CIFAR-10 are 0 to 9")
        parts.append(ImageArray(path.name, len(records), _split(path.name), partial(_images, path), marks))
    parts = select_arrays(parts, include, exclude, where)
    others = ("cifar", *((part.name, part.count) for part in parts))
    identity = ContentIdentity(where, files[0].parent, tuple(path.name for path in files), others)
    return ArraySource(parts, CLASSES, labels, identity)


def _split(name: str) -> str:
    words = re.split(r"[-_.]", name)
    return next((split for word in words if (split := split_named(word))), "train")


def _records(path: Path) -> NDArray[np.uint8]:
    size = size_of(path)
    if not size or size % _RECORD:
        raise SourceError(
            f"{path} does not consist of whole CIFAR-10 records of {_RECORD} bytes; download it again"
        )
    return bytes_in(path, size).reshape(-1, _RECORD)


def _images(path: Path) -> NDArray[np.uint8]:
    return _records(path)[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
