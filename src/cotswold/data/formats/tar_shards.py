"""Images in tar files, such as the shards of WebDataset, read in place without unpacking.

Knows: members of tar files, samples of several members (`0001.jpg`, `0001.cls`). Does not know: decoding.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.image import BrokenImageError, open_image
from cotswold.data.formats.zip_archive import MEMBER_BYTES_MAX
from cotswold.data.sources.base import PNG_HEADER_BYTES, UNLABELLED, NamedFiles
from cotswold.data.sources.contents import digests
from cotswold.data.sources.file_names import Labels, chosen, split_of_folder
from cotswold.data.sources.folder import is_image
from cotswold.data.sources.labels import checked_labels, joined_labels
from cotswold.errors import SourceError, UnlabelledError
from cotswold.files import open_reading

_Beside = dict[tuple[int, str], tarfile.TarInfo]
"""Members that may be labels, by the number of their tar file and their path."""
_LABEL_SUFFIXES = (".cls", ".json", ".cls.txt", ".txt")
"""Members that may be labels. The first of these counts, so a text is a caption if there is another."""
_LABEL_KEYS = ("label", "cls", "class")
_LABEL_BYTES_MAX = 1 << 20


def is_shard(name: str) -> bool:
    """True for the name of an uncompressed tar file."""
    return name.lower().endswith(".tar") and not name.startswith(".")


class TarSource(NamedFiles):
    """The images of one tar file, or of all tar files in a folder, in the order of their names.

    An index of the members is read when the source is opened; an image is read from its place in the file.

    Args:
        where: The tar file or the folder.
        include: Patterns of paths to use.
        exclude: Patterns of paths to leave out.
        labels: ``"folders"``, or ``"file"`` for the members ``.cls`` (a number or a name) or ``.json`` (with
            ``label``) of the same sample.
    """

    def __init__(
        self, where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
    ) -> None:
        self._where = where
        self._root = where.parent if where.is_file() else where
        self._shards = (
            [where.name] if where.is_file() else sorted(p.name for p in where.iterdir() if is_shard(p.name))
        )
        members: list[tuple[int, tarfile.TarInfo]] = []
        beside: _Beside = {}
        for number, shard in enumerate(self._shards):
            for member in _members(self._root / shard):
                if is_image(member.name):
                    members.append((number, member))
                elif member.name.endswith(_LABEL_SUFFIXES):
                    beside[number, member.name] = member
        if not members:
            raise SourceError(
                f"{where} contains no images (no .jpg, .png, .tif, ...); give tar files that do"
            )
        paths = [f"{self._shards[number]}/{member.name}" for number, member in members]
        members = [members[index] for index in chosen(paths, include, exclude, str(where))]
        self._places = [(number, member.offset_data, member.size) for number, member in members]
        names = [f"{self._shards[number]}/{member.name}" for number, member in members]
        super().__init__(str(where), names, "none" if labels == "file" else labels)
        self._labels: NDArray[Any] | None = None
        if labels == "file":
            marks = [self._label(number, member.name, beside) for number, member in members]
            has_names = any(isinstance(mark, str) for mark in marks)
            array: NDArray[Any] = np.array(marks, str) if has_names else np.array(marks)
            found = joined_labels([(str(where), checked_labels(str(where), array, len(members), "images"))])
            self._labels, self.classes, self.targets = found.labels, found.classes, found.targets

    def open_image(self, index: int) -> Image.Image:
        """Read and open one member."""
        return open_image(self.name(index), self._read(index, MEMBER_BYTES_MAX))

    def first_bytes(self, index: int) -> bytes:
        """Read the first bytes of one member."""
        return self._read(index, PNG_HEADER_BYTES)

    def contents(self) -> Sequence[object]:
        """Return a digest of each tar file."""
        return digests(self._where, self._root, self._shards)

    def label(self, index: int) -> int:
        """Return the number of the class, or -1."""
        if self._labels is None:
            return super().label(index)
        return int(self._labels[index]) if self.classes else UNLABELLED

    def labels(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of several images."""
        return super().labels(indices) if self._labels is None else self._labels[indices]

    def split_of(self, index: int) -> str | None:
        """Return the split after which the tar file is named (`train-0001.tar`), else that of the folder."""
        stem = self._shards[self._places[index][0]].removesuffix(".tar")
        return split_of_folder(stem.rstrip("0123456789").rstrip("-_.")) or super().split_of(index)

    def _read(self, index: int, most: int) -> bytes:
        number, start, size = self._places[index]
        if size > MEMBER_BYTES_MAX:
            raise BrokenImageError(f"{self.name(index)}: has {size:,} bytes (a decompression bomb?)")
        try:
            with open_reading(self._root / self._shards[number]) as file:
                file.seek(start)
                return file.read(min(size, most))
        except OSError as error:
            raise BrokenImageError(f"{self.name(index)}: {error.strerror}") from error

    def _label(self, shard: int, name: str, beside: _Beside) -> int | float | str:
        """Return the label of an image: that of the member with the same path up to the first full stop."""
        where, path = self._shards[shard], PurePosixPath(name)
        key = str(path.with_name(path.name.partition(".")[0]))
        keys = [(shard, key + end) for end in _LABEL_SUFFIXES]
        member = next((beside[each] for each in keys if each in beside), None)
        if member is None:
            raise UnlabelledError(f"{where}/{name} has no label {key}.cls", "add it,")
        with open_reading(self._root / where) as file:
            file.seek(member.offset_data)
            content = file.read(min(member.size, _LABEL_BYTES_MAX))
        text = content.decode("utf-8", "replace").strip()
        if not member.name.endswith(".json"):
            return int(text) if text.lstrip("-").isdigit() else text
        try:
            table = json.loads(text)
            found = next(table[each] for each in _LABEL_KEYS if each in table)
        except (ValueError, TypeError, StopIteration) as error:
            raise SourceError(f"{where}/{member.name} has no field `label`; add it") from error
        if not isinstance(found, int | float | str):
            raise SourceError(f"{where}/{member.name} has label {found!r:.80}; give a number or a name")
        return found


def _members(path: Path) -> list[tarfile.TarInfo]:
    """Return the regular files of a tar. Raises SourceError."""
    try:
        with open_reading(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            return [member for member in archive if member.isreg()]
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SourceError(
            f"{path} cannot be read as an uncompressed tar ({error}); unpack or copy it again"
        ) from error
