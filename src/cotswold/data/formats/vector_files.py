"""Vectors stored as .npy, .npz or two-dimensional idx files.

Knows: the arrays and their labels. Does not know: the meaning of the numbers.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import Npz, bytes_in, header, open_binary, size_of
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.file_names import Labels, chosen, split_named
from cotswold.data.sources.labels import checked_labels, joined_labels
from cotswold.data.sources.vectors import VectorArray, VectorSource, checked_shape
from cotswold.errors import SourceError, UnlabelledError

LABELS_SUFFIX = ".labels.npy"
"""Suffix of the label file next to `name.npy`."""
DATA_WORDS = {"x", "data", "vectors", "vector", "features", "inputs", "samples"}
LABEL_WORDS = {"y", "labels", "label", "targets", "target", "classes"}
"""Words in the name of an .npz array that mark its contents."""
_IDX = re.compile(
    r"^(?P<split>.+?)[-_](?P<what>images?|vectors?|features|data)[-_.]idx2[-_.]"
    r"(ubyte|byte|short|int|float|double)(\.gz)?$"
)
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(name: str) -> bool:
    """True for the name of an idx file of vectors, such as `train-vectors-idx2-float.gz`."""
    return _IDX.match(name) is not None


def name_words(name: str) -> list[str]:
    """Return the words in the name of an array."""
    return PurePath(name).stem.replace("-", "_").lower().split("_")


def open_npy(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open an array (n, feature), with labels in `name.labels.npy` next to it."""
    if include or exclude:
        raise SourceError(f"{path} is one unnamed array; include and exclude do not apply to it")
    shape = checked_shape(str(path), *npy_header(path), "vectors")
    part = VectorArray(path.name, shape, split_named(path.stem), partial(load_npy, path), str(path))
    _refuse_folders(path, labels)
    if labels == "none":
        return VectorSource([part], ContentIdentity(path, path.parent, (path.name,), ("vectors",)))
    beside = labels_beside(path)
    marks = checked_labels(str(beside), read_npy(beside), shape[0], "vectors")
    found = joined_labels([(str(beside), marks)])
    identity = ContentIdentity(path, path.parent, (path.name, beside.name), ("vectors",))
    return VectorSource([part], identity, found)


def open_npz(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open the arrays (n, feature) of an .npz with their labels."""
    _refuse_folders(path, labels)
    archive = Npz(path)
    found = [name for name in sorted(archive.shapes) if _is_vectors(name, *archive.shapes[name])]
    if not found:
        raise SourceError(
            f"{path} contains no array of vectors (n, features); it has {sorted(archive.shapes)}"
        )
    if not include and len(found) > 1:
        found = _marked_arrays(path, found)
    found = [found[index] for index in chosen(found, include, exclude, str(path))]
    parts = [
        VectorArray(
            name,
            checked_shape(f"{path}:{name}", *archive.shapes[name], "vectors"),
            split_in(name),
            partial(_member, path, name),
            f"{path}:{name}",
        )
        for name in found
    ]
    identity = ContentIdentity(path, path.parent, (path.name,), ("vectors", *found))
    if labels == "none":
        return VectorSource(parts, identity)
    marks = [(f"{path}:{part.name}", _labels_for(path, part, archive)) for part in parts]
    return VectorSource(parts, identity, joined_labels(marks))


def open_idx(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open a two-dimensional idx file, or a folder with several splits; label files are in the same
    folder.
    """
    _refuse_folders(where, labels)
    files = [where] if where.is_file() else sorted(path for path in where.iterdir() if is_idx(path.name))
    files = [files[index] for index in chosen([path.name for path in files], include, exclude, str(where))]
    parts, marks, beside_all = [], [], []
    for path in files:
        match = _IDX.match(path.name)
        assert match is not None
        shape, dtype = _idx_shape(path, 2)
        parts.append(
            VectorArray(
                path.name,
                checked_shape(str(path), shape, dtype, "vectors"),
                split_named(match["split"]),
                partial(_idx, path, 2),
                str(path),
            )
        )
        if labels == "file":
            beside = _idx_labels(path, match)
            marks.append((str(beside), checked_labels(str(beside), _idx(beside, 1), shape[0], "vectors")))
            beside_all.append(beside.name)
    names = [path.name for path in files]
    others = ("vectors", *names)
    identity = ContentIdentity(where, files[0].parent, (*names, *beside_all), others)
    return VectorSource(parts, identity, joined_labels(marks) if marks else None)


def split_in(name: str) -> str | None:
    """Return the split in the name of an array, or None."""
    return next((split for word in name_words(name) if (split := split_named(word))), None)


def npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of the array in an .npy file. Raises SourceError for other files."""
    with open_binary(path, "save it again with numpy.save") as file:
        try:
            return header(file)
        except (ValueError, SyntaxError, TypeError, EOFError, KeyError) as error:  # from a damaged header
            raise SourceError(
                f"{path} cannot be read as .npy ({error}); save it again with numpy.save"
            ) from error


def load_npy(path: Path) -> NDArray[Any]:
    """Memory-map the array in an .npy file without unpickling. Raises SourceError."""
    return _loaded(path, "r")


def read_npy(path: Path) -> NDArray[Any]:
    """Read the array in an .npy file; suits empty and scalar labels. Raises SourceError."""
    return _loaded(path, None)


def _loaded(path: Path, mode: Literal["r"] | None) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    except Exception as error:  # truncated files, Python objects, and others
        raise SourceError(
            f"{path} cannot be read as .npy ({error}); save it again with numpy.save"
        ) from error
    return array


def labels_beside(path: Path) -> Path:
    """Return the label file of an .npy. Raises UnlabelledError if it is missing."""
    beside = path.with_name(path.name.removesuffix(".npy") + LABELS_SUFFIX)
    if not beside.is_file():
        raise UnlabelledError(f"{path} has no label file {beside.name} next to it", "add the file")
    return beside


def _refuse_folders(where: Path, labels: Labels) -> None:
    if labels == "folders":
        raise SourceError(f'{where} has no folders to take labels from; set labels = "file" or "none"')


def _is_vectors(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return len(shape) == 2 and dtype.kind in "buif" and not LABEL_WORDS & set(name_words(name))


def _marked_arrays(path: Path, names: Sequence[str]) -> list[str]:
    """Return the arrays whose names mark them as vectors or name a split."""
    meant = [name for name in names if split_in(name) or DATA_WORDS & set(name_words(name))]
    if not meant:
        raise SourceError(
            f"{path} contains {len(names)} arrays that may be vectors ({', '.join(names)}); name the right "
            "ones x, data, vectors or features (with train, validation or test, as in train_x), or select "
            "them with include"
        )
    return meant


def _labels_for(path: Path, part: VectorArray, archive: Npz) -> NDArray[Any]:
    """Return the array of the same split with a name for labels, else the only such array by dtype and
    length.

    Labels without a telling name are integers or texts, one for each sample.
    """
    others = {
        name: (shape, dtype)
        for name, (shape, dtype) in archive.shapes.items()
        if name != part.name and split_in(name) == split_in(part.name)
    }
    named = [name for name in others if LABEL_WORDS & set(name_words(name))]
    found = named or [
        name
        for name, (shape, dtype) in others.items()
        if dtype.kind in "iuUS" and shape[:1] == part.shape[:1] and math.prod(shape) == part.shape[0]
    ]
    if len(found) != 1:
        said = (
            f"has {len(found)} arrays that may be its labels ({', '.join(found)})"
            if found
            else "has no labels"
        )
        raise UnlabelledError(f"{path}:{part.name} {said}", "name one of them y or labels,")
    return checked_labels(f"{path}:{found[0]}", archive[found[0]], part.shape[0], "vectors")


def _member(path: Path, name: str) -> NDArray[Any]:
    return Npz(path)[name]


def _idx_labels(path: Path, match: re.Match[str]) -> Path:
    stem = path.name.removesuffix(".gz")[: match.start("what")] + "labels-idx1-ubyte"
    for name in (stem, stem + ".gz"):
        if path.with_name(name).exists():
            return path.with_name(name)
    raise UnlabelledError(f"{path} has no label file {stem} next to it", "add the file")


def _idx(path: Path, dimensions: int) -> NDArray[Any]:
    """Return the array of an idx file."""
    shape, dtype = _idx_shape(path, dimensions)
    body = bytes_in(path, math.prod(shape) * dtype.itemsize, 4 + 4 * dimensions)
    return body.view(dtype).reshape(shape)


def _idx_shape(path: Path, dimensions: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype in the header, if the size of the file agrees."""
    begins = 4 + 4 * dimensions
    with open_binary(path) as file:
        head = file.read(begins)
    if len(head) < begins or head[:2] != b"\0\0" or head[3] != dimensions or head[2] not in _IDX_TYPES:
        raise SourceError(f"{path} is not an idx file with {dimensions} dimensions; download it again")
    shape: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", head, 4)
    dtype = np.dtype(_IDX_TYPES[head[2]])
    body = size_of(path) - begins
    if body != math.prod(shape) * dtype.itemsize:
        raise SourceError(
            f"{path} contains {body:,} bytes of values but its header says {shape} {dtype}; download it again"
        )
    return shape, dtype
