"""Sequences of frames: a folder or zip of .npy files, or one .npz with their lengths.

Knows: the files of sequences and their labels. Does not know: the contents of a frame.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cotswold.data.formats.array_files import UNPACKED_BYTES_MAX, Npz, header, size_error
from cotswold.data.formats.vector_files import (
    DATA_WORDS,
    LABEL_WORDS,
    LABELS_SUFFIX,
    load_npy,
    name_words,
    npy_header,
    read_npy,
    split_in,
)
from cotswold.data.formats.zip_archive import opened_zip
from cotswold.data.sources.base import hashed
from cotswold.data.sources.contents import ContentIdentity, digests
from cotswold.data.sources.file_names import Labels, Paths, chosen
from cotswold.data.sources.folder import walk_files
from cotswold.data.sources.labels import LabelArray, checked_labels, joined_labels
from cotswold.data.sources.vectors import VectorArray, VectorSource, checked_shape
from cotswold.errors import SourceError, UnlabelledError

T = TypeVar("T")

_FRAMES = "frames"
_FRAME_WORDS = DATA_WORDS | {_FRAMES}
"""Words in the name of an .npz array of frames."""


def is_array(name: str) -> bool:
    """True for the path of an .npy file, including label files; False for hidden files."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() == ".npy" and not hidden


def has_lengths(path: Path) -> bool:
    """True if an .npz contains sequences."""
    return bool(_sequence_arrays(Npz(path).shapes))


def open_folder(
    root: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    """Open a folder in which every .npy, ordered by path, is a sequence."""
    return _open_files(_Folder(root), include, exclude, labels)


def open_zip(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open a zip as `open_folder` opens a folder, without unpacking it."""
    return _open_files(_Zip(path), include, exclude, labels)


def open_npz(path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> VectorSource:
    """Open an .npz: `frames` (N, feature), `lengths` (sequence,), optional `labels` (N,) or (sequence,).

    Each split may have its own arrays, such as `x_train`, `length_train` and `y_train`.
    """
    if include or exclude:
        raise SourceError(f"{path} contains unnamed sequences; include and exclude do not apply to it")
    if labels == "folders":
        raise SourceError(f'{path} has no folders to take labels from; set labels = "file" or "none"')
    archive = Npz(path)
    found = _sequence_arrays(archive.shapes)
    if not found:
        raise SourceError(
            f"{path} has no arrays `frames` (N, features) and `lengths` (sequences,); it has "
            f"{sorted(archive.shapes)}"
        )
    parts, marks = [], []
    all_lengths: list[int] = []
    for each in found:
        name = f"{path}:{each.frames}"
        shape = checked_shape(name, *archive.shapes[each.frames], "frames")
        lengths = _checked_lengths(f"{path}:{each.lengths}", archive[each.lengths], shape[0])
        split = split_in(each.frames) if len(found) > 1 else None
        label = path.name if each.frames == _FRAMES else each.frames
        parts.append(VectorArray(label, shape, split, partial(_npz_frames, path, each.frames), name))
        all_lengths += lengths.tolist()
        if labels == "file":
            marks.append(_npz_labels(path, archive, each, lengths))
    identity = ContentIdentity(path, path.parent, (path.name,), ("frames",))
    return VectorSource(parts, identity, joined_labels(marks) if marks else None, all_lengths)


@dataclass(frozen=True)
class _SequenceArrays:
    """Names of the arrays of frames, their lengths and their labels, of one split."""

    frames: str
    lengths: str
    labels: str | None


def _sequence_arrays(shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> list[_SequenceArrays]:
    """Return the arrays of sequences in an .npz: `frames` and `lengths`, or others per split (`x_train`,
    `length_train`, `y_train`).
    """
    found = []
    for lengths in sorted(shapes):
        if not {"lengths", "length"} & set(name_words(lengths)):
            continue
        same = [name for name in sorted(shapes) if split_in(name) == split_in(lengths) and name != lengths]
        frames = [name for name in same if name == _FRAMES or _are_frames(name, shapes, lengths)]
        labels = [name for name in same if _words(name) & LABEL_WORDS and name not in frames]
        if len(frames) == 1:
            found.append(_SequenceArrays(frames[0], lengths, labels[0] if len(labels) == 1 else None))
    return found


def _are_frames(name: str, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], lengths: str) -> bool:
    """True for an array of two dimensions, unless it has as many rows as there are lengths."""
    shape = shapes[name][0]
    is_per_row = shape[:1] == shapes[lengths][0][:1]
    return bool(_words(name) & _FRAME_WORDS) and len(shape) == 2 and not is_per_row


def _words(name: str) -> set[str]:
    return set(name_words(name))


def _checked_lengths(name: str, lengths: NDArray[Any], frames: int) -> NDArray[Any]:
    """Return the lengths of sequences. Raises SourceError unless they are positive and sum to ``frames``."""
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths) or int(lengths.min()) < 1:
        raise SourceError(
            f"{name} has dtype {lengths.dtype} and shape {lengths.shape}; give one integer of at least 1 for "
            "each sequence"
        )
    if int(lengths.sum()) != frames:
        raise SourceError(
            f"{name} sums to {int(lengths.sum()):,}, but there are {frames:,} frames; make them agree"
        )
    return lengths


def _npz_labels(
    path: Path, archive: Npz, arrays: _SequenceArrays, lengths: NDArray[Any]
) -> tuple[str, NDArray[Any]]:
    """Return the name and the labels of frames; labels of whole sequences are repeated."""
    if arrays.labels is None:
        raise UnlabelledError(f"{path} has no array `labels`", "add it")
    name, marks, rows = f"{path}:{arrays.labels}", archive[arrays.labels], int(lengths.sum())
    if marks.shape[:1] == lengths.shape and len(lengths) != rows:
        marks = np.repeat(marks, lengths, axis=0)
    return name, checked_labels(name, marks, rows, "frames")


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


def _npz_frames(path: Path, name: str) -> NDArray[Any]:
    return Npz(path)[name]
