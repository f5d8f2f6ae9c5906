"""Images stored as arrays: .npy and .npz files, and the base class for idx and CIFAR-10.

Knows: axes, value ranges, arrays with labels and splits. Does not know: the idx and CIFAR-10 formats.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.array_files import Npz
from cotswold.data.formats.image import BrokenImageError
from cotswold.data.formats.intensity_range import Ranges, is_deep
from cotswold.data.sources.base import UNLABELLED, Source
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.file_names import Labels, chosen, split_named
from cotswold.data.sources.vectors import sequences_remedy
from cotswold.errors import SourceError, UnlabelledError

_MAX_VALUE = (1 << 16) - 1
"""The greatest integer allowed in an image."""
_WORDS = {"images", "image", "pictures", "picture", "x", "data"}
"""Words in the name of an .npz array that mark it as an array of images."""


@dataclass(frozen=True)
class ImageArray:
    """An array of images, such as MNIST's training set."""

    name: str
    count: int
    split: str | None
    load: Callable[[], NDArray[Any]]
    """Return (image, y, x) or (image, y, x, channel); called once per process, when the first image is
    read.
    """
    labels: NDArray[np.int64] | None = None
    where: str = ""
    """Name in messages, beginning with the file; `name` if empty."""


class ArraySource(Source):
    """Several arrays in sequence; each process loads an array when it first needs it."""

    def __init__(
        self,
        parts: list[ImageArray],
        classes: tuple[str, ...],
        labels: Labels,
        identity: Callable[[], str],
    ) -> None:
        where = parts[0].name
        if labels == "folders":
            raise SourceError(f'{where} has no folders to take labels from; set labels = "file" or "none"')
        if labels == "file" and any(part.labels is None for part in parts):
            missing = next(part.name for part in parts if part.labels is None)
            raise UnlabelledError(f"{missing} contains no labels", "add them")
        self._parts, self._labelled, self._identity = parts, labels == "file", identity
        self._ends = list(accumulate(part.count for part in parts))
        self._loaded: dict[int, NDArray[Any]] = {}
        if self._ends[-1] == 0:
            raise SourceError(f"{where} contains no images; give a file that does")
        if self._labelled:
            self.classes = classes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int) -> str:
        """Return the name of the array and the index in it."""
        part, offset = self._locate(index)
        return f"{self._parts[part].name}[{offset}]"

    def read(self, index: int) -> Image.Image:
        """Return one image of an array. Raises BrokenImageError if a value is infinite or NaN."""
        number, offset = self._locate(index)
        image = np.asarray(self._array(number)[offset])
        if image.ndim == 3 and image.shape[2] == 1:
            image = image[:, :, 0]
        if image.dtype == np.bool_:
            image = image.astype(np.uint8) * np.uint8(255)
        levels = self.ranges.apply(image) if is_deep(image) else np.ascontiguousarray(image)
        if levels is None:
            raise BrokenImageError(f"{self.name(index)}: contains infinite or NaN values")
        return Image.fromarray(levels)

    def _find_ranges(self) -> Ranges:
        """Find the value range of all images with more than 8 bits.

        Raises SourceError unless the values lie in 0..1, in 0..255 or are integers of at most 16 bits.
        """
        ranges = Ranges()
        for number, part in enumerate(self._parts):
            array = self._array(number)
            found = ranges.add(array) if is_deep(array) else None
            if found is not None and (found.low < 0 or found.high > (_MAX_VALUE if found.integers else 255)):
                shape = array.shape
                raise SourceError(
                    f"{part.where or part.name} has values from {found.low:.4g} to {found.high:.4g}; "
                    "scale them to 0..1 or 0..255 if they are images"
                    + (f"; {sequences_remedy(shape)}" if len(shape) == 3 else "")
                )
        return ranges

    def _array(self, number: int) -> NDArray[Any]:
        if number not in self._loaded:
            self._loaded[number] = self._parts[number].load()
        return self._loaded[number]

    def label(self, index: int) -> int:
        """Return the label stored in the file."""
        part, offset = self._locate(index)
        labels = self._parts[part].labels
        return int(labels[offset]) if self._labelled and labels is not None else UNLABELLED

    def split_of(self, index: int) -> str | None:
        """Return the split named by the file or array."""
        return self._parts[self._locate(index)[0]].split

    @cached_property
    def identity(self) -> str:
        """A hash of the contents of the files and of the selected arrays."""
        return self._identity()

    def _locate(self, index: int) -> tuple[int, int]:
        part = bisect.bisect_right(self._ends, index)
        return part, index - (self._ends[part] - self._parts[part].count)


def select_arrays(
    parts: list[ImageArray], include: tuple[str, ...], exclude: tuple[str, ...], where: Path
) -> list[ImageArray]:
    """Select the arrays whose names match the include and exclude patterns."""
    return [parts[index] for index in chosen([p.name for p in parts], include, exclude, str(where))]


def open_arrays(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    """Open a .npy file, or the image arrays of an .npz with their labels."""
    if path.suffix.lower() == ".npy":
        if include or exclude:
            raise SourceError(f"{path} is one unnamed array; include and exclude do not apply to it")
        array = _load_npy(path)
        _check(str(path), array.shape, array.dtype)
        load, split = partial(_npy_images, path), split_named(path.stem)
        parts = [ImageArray(path.name, len(array), split, load, where=str(path))]
        return ArraySource(parts, (), labels, ContentIdentity(path, path.parent, (path.name,), ("array",)))
    archive = Npz(path)
    images = {name for name, (shape, _) in archive.shapes.items() if len(shape) >= 3}
    if not images:
        raise SourceError(
            f"{path} contains no array of images (image, y, x[, channel]); it has {sorted(archive.shapes)}"
        )
    parts = []
    for name in sorted(images) if include else _marked_arrays(path, sorted(images)):
        shape, dtype = archive.shapes[name]
        _check(f"{path}:{name}", shape, dtype)
        marks = _labels_for(path, name, shape[0], archive) if labels == "file" else None
        load = partial(_npz_images, path, name)
        parts.append(ImageArray(name, shape[0], _split_in(name), load, marks, f"{path}:{name}"))
    highest = max((int(p.labels.max(initial=0)) for p in parts if p.labels is not None), default=-1)
    classes = tuple(str(number) for number in range(highest + 1))
    parts = select_arrays(parts, include, exclude, path)
    others = ("arrays", *((part.name, part.count) for part in parts))
    return ArraySource(parts, classes, labels, ContentIdentity(path, path.parent, (path.name,), others))


def _marked_arrays(path: Path, names: list[str]) -> list[str]:
    """Return the only array of images, or all arrays whose names mark them as images."""
    meant = [
        name for name in names if _split_in(name) or _WORDS & {word.lower() for word in _name_words(name)}
    ]
    if len(names) > 1 and not meant:
        raise SourceError(
            f"{path} contains {len(names)} arrays that may be images ({', '.join(names)}); name the right "
            "ones images, data or x (with train, validation or test, as in train_images), or select them "
            "with include"
        )
    return names if len(names) == 1 else meant


def _load_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a malformed header fails in many ways
        raise SourceError(
            f"{path} cannot be read as .npy ({error}); save it again with numpy.save"
        ) from error
    return array


def _npy_images(path: Path) -> NDArray[Any]:
    return _channels_last(_load_npy(path))


def _npz_images(path: Path, name: str) -> NDArray[Any]:
    return _channels_last(Npz(path)[name])


def _check(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise SourceError if an array cannot contain images."""
    if len(shape) not in (3, 4) or (len(shape) == 4 and not {shape[1], shape[3]} & {1, 3, 4}):
        raise SourceError(
            f"{name} has shape {shape}; images are (image, y, x), (image, y, x, channel) or "
            "(image, channel, y, x) with 1, 3 or 4 channels"
            + ("; vectors are (n, features)" if len(shape) < 3 else "")
        )
    if 0 in shape:
        raise SourceError(f"{name} has shape {shape}, so it contains no images")
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise SourceError(f"{name} has dtype {dtype}; images are unsigned integers or floats")


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 4 and array.shape[3] not in (1, 3, 4):
        return array.transpose(0, 2, 3, 1)
    return array


def _name_words(name: str) -> list[str]:
    return PurePath(name).stem.replace("-", "_").split("_")


def _split_in(name: str) -> str | None:
    return next((split for word in _name_words(name) if (split := split_named(word))), None)


def _labels_for(path: Path, name: str, count: int, archive: Npz) -> NDArray[np.int64] | None:
    """Return the integer array of the same length and split, if there is exactly one."""
    found = [
        other
        for other, (shape, dtype) in archive.shapes.items()
        if dtype.kind in "iu"
        and shape[:1] == (count,)
        and math.prod(shape) == count
        and _split_in(other) == _split_in(name)
    ]
    if len(found) != 1:
        return None
    labels = archive[found[0]].reshape(-1)
    negative = np.flatnonzero(labels < 0)
    if len(negative):
        raise SourceError(
            f"{path}:{found[0]}[{negative[0]}] has label {labels[negative[0]]}, but classes are numbered "
            f"from 0; {len(negative):,} labels are negative: remove these samples, or number the classes"
        )
    return labels.astype(np.int64)
