"""Sequences of frames: a folder or zip of .npy files, or one .npz with their lengths.

Knows: the files of sequences and their labels. Does not know: the contents of a frame.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import UNPACKED_BYTES_MAX, Npz, header, size_error
from cotswold.data.formats.vector_files import LABELS_SUFFIX, load_npy, npy_header, read_npy
from cotswold.data.formats.zip_archive import opened_zip
from cotswold.data.sources.base import hashed
from cotswold.data.sources.contents import ContentIdentity, digests
from cotswold.data.sources.file_names import Labels, Paths, chosen
from cotswold.data.sources.folder import walk_files
from cotswold.data.sources.labels import LabelArray, checked_labels, joined_labels
from cotswold.data.sources.vectors import VectorArray, VectorSource, checked_shape
from cotswold.errors import SourceError, UnlabelledError

T = TypeVar("T")

_FRAMES, _LENGTHS, _LABELS = "frames", "lengths", "labels"
"""Names of the arrays in an .npz of sequences."""


def is_array(name: str) -> bool:
    """True for the path of an .npy file, including label files; False for hidden files."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() == ".npy" and not hidden


def has_lengths(path: Path) -> bool:
    """True if an .npz contains sequences."""
    return {_FRAMES, _LENGTHS} <= Npz(path).shapes.keys()


def open_folder(
    root: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    """Open a folder in which every .npy, ordered by path, is a sequence."""
    return _open_files(_Folder(root), include, exclude, labels)


def open_zip(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open a zip as `open_folder` opens a folder, without unpacking it."""
    return _open_files(_Zip(path), include, exclude, labels)


def open_npz(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open an .npz: `frames` (N, feature), `lengths` (sequence,), optional `labels` (N,) or (sequence,)."""
    if include or exclude:
        raise SourceError(f"{path} contains unnamed sequences; include and exclude do not apply to it")
    if labels == "folders":
        raise SourceError(f'{path} has no folders to take labels from; set labels = "file" or "none"')
    archive = Npz(path)
    if not {_FRAMES, _LENGTHS} <= archive.shapes.keys():
        raise SourceError(
            f"{path} has no arrays `frames` (N, features) and `lengths` (sequences,); it has "
            f"{sorted(archive.shapes)}"
        )
    shape = checked_shape(f"{path}:{_FRAMES}", *archive.shapes[_FRAMES], "frames")
    lengths = archive[_LENGTHS]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths) or int(lengths.min()) < 1:
        raise SourceError(
            f"{path}:{_LENGTHS} has dtype {lengths.dtype} and shape {lengths.shape}; give one integer of at "
            "least 1 for "
            "each sequence"
        )
    if int(lengths.sum()) != shape[0]:
        raise SourceError(
            f"{path}:{_LENGTHS} sums to {int(lengths.sum()):,}, but there are {shape[0]:,} frames; make "
            "them agree"
        )
    found: LabelArray | None = None
    if labels == "file":
        if _LABELS not in archive.shapes:
            raise UnlabelledError(f"{path} has no array `labels`", "add it")
        name, marks = f"{path}:{_LABELS}", archive[_LABELS]
        if marks.shape[:1] == lengths.shape and len(lengths) != shape[0]:
            marks = np.repeat(marks, lengths, axis=0)
        found = joined_labels([(name, checked_labels(name, marks, shape[0], "frames"))])
    part = VectorArray(path.name, shape, None, partial(_npz_frames, path), f"{path}:{_FRAMES}")
    identity = ContentIdentity(path, path.parent, (path.name,), ("frames",))
    return VectorSource([part], identity, found, lengths.tolist())


class _Files(Protocol):
    """Arrays, addressed by relative paths."""

    where: str
    names: list[str]

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of an array."""

    def load(self, name: str) -> NDArray[Any]:
        """Return an array."""

    def contents(self, names: Sequence[str]) -> Sequence[object]:
        """Return a digest of each file."""


class _Folder:
    def __init__(self, root: Path) -> None:
        self.where, self._root = str(root), root
        self.names = sorted(
            n for path in walk_files(root) if is_array(n := path.relative_to(root).as_posix())
        )

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        return npy_header(self._root / name)

    def load(self, name: str) -> NDArray[Any]:
        return (read_npy if name.endswith(LABELS_SUFFIX) else load_npy)(self._root / name)

    def contents(self, names: Sequence[str]) -> Sequence[object]:
        return digests(self._root, self._root, names)


class _Zip:
    """A zip file; each process opens its own handle."""

    def __init__(self, path: Path) -> None:
        self.where, self._path = str(path), path
        self._archive: zipfile.ZipFile | None = None
        self.names = sorted(name for name in self._open().namelist() if is_array(name))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        return self._read(name, header)

    def load(self, name: str) -> NDArray[Any]:
        return self._read(name, _unpacked)

    def contents(self, names: Sequence[str]) -> Sequence[object]:
        members = [self._open().getinfo(name) for name in names]
        return [(member.file_size, member.CRC) for member in members]

    def _read(self, name: str, read: Callable[[IO[bytes]], T]) -> T:
        archive = self._open()
        try:
            size = archive.getinfo(name).file_size
            if size > UNPACKED_BYTES_MAX:
                raise size_error(f"{self.where}/{name}", size)
            with archive.open(name) as file:
                return read(file)
        except SourceError:
            raise
        except Exception as error:  # zip, zlib and format errors of every kind
            raise SourceError(
                f"{self.where}/{name} cannot be read ({error}); save it again with numpy.save"
            ) from error

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = opened_zip(self._path)
        return self._archive


def _unpacked(file: IO[bytes]) -> NDArray[Any]:
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False)
    return array


def _open_files(
    files: _Files, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    where, names = files.where, files.names
    beside = {name for name in names if name.endswith(LABELS_SUFFIX)}
    names = [name for name in names if name not in beside]
    if not names:
        raise SourceError(f"{where} contains no sequences of frames (no .npy); give one that does")
    names = [names[index] for index in chosen(names, include, exclude, where)]
    paths = Paths(where, names, labels)
    shapes = [checked_shape(f"{where}/{name}", *files.header(name), "frames") for name in names]
    lengths = [rows for rows, _ in shapes]
    parts = [
        VectorArray(name, shape, paths.split_of(index), partial(files.load, name), f"{where}/{name}")
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    read, others = list(names), ("frames", *names)
    found: LabelArray | None = None
    if paths.labels is not None:
        found = LabelArray(np.repeat(paths.labels, lengths).astype(np.int64), paths.classes)
    elif labels == "file":
        marks = []
        for name, rows in zip(names, lengths, strict=True):
            marks.append((f"{where}/{name[:-4]}{LABELS_SUFFIX}", _labels_of(files, name, rows, beside)))
            read.append(name[:-4] + LABELS_SUFFIX)
        found = joined_labels(marks)
    return VectorSource(parts, partial(_identity, files, read, others), found, lengths)


def _identity(files: _Files, read: Sequence[str], others: Sequence[object]) -> str:
    return hashed([*others, *files.contents(read)])


def _labels_of(files: _Files, name: str, rows: int, beside: set[str]) -> NDArray[Any]:
    """Return one label per frame; the label file has one per frame or one for the whole sequence."""
    file = name[:-4] + LABELS_SUFFIX
    if file not in beside:
        raise UnlabelledError(f"{files.where}/{name} has no label file {file} next to it", "add the file")
    marks = files.load(file)
    if marks.ndim == 0:
        marks = marks[None]
    if len(marks) == 1:
        marks = np.repeat(marks, rows, axis=0)
    return checked_labels(f"{files.where}/{file}", marks, rows, "frames (or give one for the whole sequence)")


def _npz_frames(path: Path) -> NDArray[Any]:
    return Npz(path)[_FRAMES]
