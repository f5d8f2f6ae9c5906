"""Pictures that come as arrays: .npy and .npz, and the base of idx and CIFAR-10.

Knows: which axis is which, ranges of values, parts with labels and splits. Does not know: idx, CIFAR-10.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.source import UNLABELLED, Labels, Source, chosen, hashed, split_named
from cotswold.errors import SourceError

_SAMPLE = 64
_WORDS = {"images", "image", "pictures", "picture", "x", "data"}
"""Words in the names of arrays of an .npz that say that pictures are in it."""


@dataclass(frozen=True)
class Part:
    """Pictures that lie in one array, such as MNIST's training set."""

    name: str
    count: int
    split: str | None
    load: Callable[[], NDArray[Any]]
    """Returns (image, y, x) or (image, y, x, channel); called once a process, when the first picture is
    read."""
    labels: NDArray[np.int64] | None = None


class ArraySource(Source):
    """Parts, one after the other; every process loads a part for itself when it needs it."""

    def __init__(self, parts: list[Part], classes: tuple[str, ...], labels: Labels, identity: str) -> None:
        where = parts[0].name
        if labels == "folders":
            raise SourceError(f'{where} has no folders to take labels from; use labels = "file" or "none"')
        if labels == "file" and any(part.labels is None for part in parts):
            missing = next(part.name for part in parts if part.labels is None)
            raise SourceError(f'{missing} carries no labels; use labels = "none" or add them')
        self._parts, self._labelled, self._identity = parts, labels == "file", identity
        self._ends = list(accumulate(part.count for part in parts))
        self._loaded: dict[int, NDArray[Any]] = {}
        if self._ends[-1] == 0:
            raise SourceError(f"{where} holds no pictures; give a file that does")
        if self._labelled:
            self.classes = classes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def name(self, index: int) -> str:
        """The part and the number inside it."""
        part, offset = self._place(index)
        return f"{self._parts[part].name}[{offset}]"

    def read(self, index: int) -> Image.Image:
        """One picture of the array."""
        number, offset = self._place(index)
        if number not in self._loaded:
            self._loaded[number] = self._parts[number].load()
        return Image.fromarray(eight_bits(self._loaded[number], offset))

    def label(self, index: int) -> int:
        """What the file says."""
        part, offset = self._place(index)
        labels = self._parts[part].labels
        return int(labels[offset]) if self._labelled and labels is not None else UNLABELLED

    def split_of(self, index: int) -> str | None:
        """What the file or array is called."""
        return self._parts[self._place(index)[0]].split

    @property
    def identity(self) -> str:
        """Over names and sizes of the parts."""
        return self._identity

    def _place(self, index: int) -> tuple[int, int]:
        part = bisect.bisect_right(self._ends, index)
        return part, index - (self._ends[part] - self._parts[part].count)


def kept(parts: list[Part], include: tuple[str, ...], exclude: tuple[str, ...], where: Path) -> list[Part]:
    """The parts whose names the patterns choose."""
    return [parts[index] for index in chosen([p.name for p in parts], include, exclude, str(where))]


def eight_bits(pictures: NDArray[Any], index: int) -> NDArray[np.uint8]:
    """One picture as Pillow takes it: uint8 (y, x) or (y, x, channel)."""
    picture = np.asarray(pictures[index])
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[:, :, 0]
    if picture.dtype == np.uint8:
        return np.ascontiguousarray(picture)
    if picture.dtype == np.bool_:
        return picture.astype(np.uint8) * np.uint8(255)
    if picture.dtype == np.uint16:
        return (picture >> 8).astype(np.uint8)
    scale = 255.0 if float(np.max(pictures[:_SAMPLE])) <= 1 else 1.0
    values: NDArray[np.uint8] = np.rint(np.clip(np.nan_to_num(picture) * scale, 0, 255)).astype(np.uint8)
    return values


def open_arrays(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    """A .npy file, or the picture arrays of an .npz with the labels that belong to them."""
    identity = hashed(["arrays", path.stat().st_size, *_ends_of(path)])
    if path.suffix.lower() == ".npy":
        if include or exclude:
            raise SourceError(f"{path} holds one array without names; include and exclude do not apply to it")
        array = _checked(str(path), _load_npy(path))
        parts = [Part(path.name, len(array), split_named(path.stem), partial(_npy_pictures, path))]
        return ArraySource(parts, (), labels, identity)
    with _open_npz(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    pictures = {name: array for name, array in arrays.items() if array.ndim >= 3}
    if not pictures:
        raise SourceError(
            f"{path} holds no array of pictures (image, y, x[, channel]); it has {sorted(arrays)}"
        )
    parts = []
    for name in sorted(pictures) if include else _meant(path, sorted(pictures)):
        array = _checked(f"{path}:{name}", pictures[name])
        marks = _labels_for(name, len(array), arrays)
        parts.append(Part(name, len(array), _split_in(name), partial(_npz_pictures, path, name), marks))
    highest = max((int(p.labels.max(initial=0)) for p in parts if p.labels is not None), default=-1)
    classes = tuple(str(number) for number in range(highest + 1))
    return ArraySource(kept(parts, include, exclude, path), classes, labels, identity)


def _meant(path: Path, names: list[str]) -> list[str]:
    """The only array of pictures, or those whose names say that they are."""
    meant = [name for name in names if _split_in(name) or _WORDS & {word.lower() for word in _words(name)}]
    if len(names) > 1 and not meant:
        raise SourceError(
            f"{path} holds {len(names)} arrays that may be pictures ({', '.join(names)}); call those that "
            "are images, pictures, data or x (with train, validation or test, as in train_images), or choose "
            "by include"
        )
    return names if len(names) == 1 else meant


def _ends_of(path: Path) -> Iterator[bytes]:
    """The first and last MiB of a file: enough to tell data sets apart without reading all of a large one."""
    with path.open("rb") as file:
        yield file.read(1 << 20)
        file.seek(max(0, path.stat().st_size - (1 << 20)))
        yield file.read(1 << 20)


def _load_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SourceError(f"{path} cannot be read as .npy ({error}); save it anew with numpy.save") from error
    return array


def _open_npz(path: Path) -> Any:
    try:
        archive = np.load(path, allow_pickle=False)
        for name in archive.files:
            archive[name]
    except Exception as error:  # zip, zlib and format errors of every kind
        raise SourceError(
            f"{path} cannot be read as .npz ({error}); save it anew with numpy.savez"
        ) from error
    return archive


def _npy_pictures(path: Path) -> NDArray[Any]:
    return _channels_last(_load_npy(path))


def _npz_pictures(path: Path, name: str) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as archive:
        return _channels_last(archive[name])


def _checked(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Channels last; SourceError where it cannot be pictures."""
    if array.ndim not in (3, 4) or (array.ndim == 4 and not {array.shape[1], array.shape[3]} & {1, 3, 4}):
        raise SourceError(
            f"{name} has shape {array.shape}; pictures are (image, y, x), (image, y, x, channel) or "
            "(image, channel, y, x) with 1, 3 or 4 channels"
        )
    if 0 in array.shape:
        raise SourceError(f"{name} has shape {array.shape}: no pictures in it")
    if array.dtype.kind not in "buif" or array.dtype.itemsize > 8:
        raise SourceError(f"{name} is of type {array.dtype}; pictures are unsigned integers or floats")
    sample = np.asarray(array[:_SAMPLE], np.float64)
    if array.dtype not in (np.uint8, np.bool_, np.uint16) and (sample.min() < 0 or sample.max() > 255):
        raise SourceError(
            f"{name} has values from {sample.min():.4g} to {sample.max():.4g}; scale them to 0..1 or 0..255"
        )
    return _channels_last(array)


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim == 4 and array.shape[3] not in (1, 3, 4):
        return array.transpose(0, 2, 3, 1)
    return array


def _words(name: str) -> list[str]:
    return PurePath(name).stem.replace("-", "_").split("_")


def _split_in(name: str) -> str | None:
    return next((split for word in _words(name) if (split := split_named(word))), None)


def _labels_for(name: str, count: int, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    """The integer array of the same length and split, if there is exactly one."""
    found = [
        array.reshape(-1)
        for other, array in arrays.items()
        if array.dtype.kind in "iu"
        and array.size == len(array) == count
        and _split_in(other) == _split_in(name)
    ]
    if len(found) != 1 or int(found[0].min(initial=0)) < 0:
        return None
    return found[0].astype(np.int64)
