"""Interfaces of sources of samples and of images.

Knows: names, labels, classes and splits as a table. Does not know: file formats.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import hashlib
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.image import BrokenImageError, numbers, shallow
from cotswold.data.formats.intensity_range import Ranges
from cotswold.errors import SourceError, UnlabelledError
from cotswold.words import counted

Labels = Literal["none", "folders", "file"]
Kind = Literal["images", "vectors", "frames"]
"""The kind of samples in a source."""

UNLABELLED = -1
"""Label of a sample without one."""

_SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "t10k": "test",
    "eval": "test",
    "evaluation": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "development": "validation",
}
_BESIDE = re.compile(r"[-_. ]+|(set|data|images?|images?)(?![a-z])|\d+$")
"""Text allowed next to a split's name in the name of a folder: `test_set`, `val2017`."""


def composed(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), in which "é" is one character instead of two."""
    return unicodedata.normalize("NFC", text)


def split_named(word: str) -> str | None:
    """Return `train`, `validation` or `test` if a word means one of them, else None."""
    return _SPLITS.get(word.lower())


@lru_cache(maxsize=1 << 12)
def split_of_folder(name: str) -> str | None:
    """Return the split after which a folder is named (`Train`, `test_set`, `val2017`), else None."""
    return split_named(name) or split_named(_BESIDE.sub("", name.lower()))


class SampleSource(ABC):
    """Samples by number, in an order determined by their names.

    Base class of `Source` and `VectorSource`. Instances must be cheap to pickle and open files late, because
    every process of a preparation has a copy.
    """

    kind: Kind
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their labels; empty without labels."""
    targets: int = 0
    """Numbers in each regression target; 0 if labels are classes or missing."""
    lengths: NDArray[np.int64] | None = None
    """Frames in each of the consecutive sequences; None if samples are independent."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples, including broken ones."""

    def __repr__(self) -> str:
        labels = f", {counted(len(self.classes), 'class')}" if self.classes else ""
        labels = f", {counted(self.targets, 'regression target')}" if self.targets else labels
        sequences = "" if self.lengths is None else f" in {counted(len(self.lengths), 'sequence')}"
        return f"<{type(self).__name__}: {len(self):,} {self._noun}{sequences}{labels}>"

    @property
    def _noun(self) -> str:
        """The noun for samples in `repr`."""
        return self.kind

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a sample in messages: its path inside the source.

        Args:
            index: Number of the sample, from 0.
        """

    @abstractmethod
    def label(self, index: int) -> int:
        """Return an index into `classes`, or -1 without labels.

        Args:
            index: Number of the sample, from 0.
        """

    def labels(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return the labels of several samples.

        Args:
            indices: Numbers of the samples, int64 (sample,).

        Returns:
            int64 (sample,), or regression targets, float32 (sample, target).

        Raises:
            SourceError: if a label is not an integer.
        """
        labels = [self.label(index) for index in indices.tolist()]
        for index, label in zip(indices.tolist(), labels, strict=True):
            if not isinstance(label, int | np.integer):
                raise SourceError(
                    f"{self.name(index)}: the label must be the number of a class (0 for the first name in "
                    f"classes), got {label!r:.80}"
                )
        return np.array(labels, np.int64)

    def split_of(self, index: int) -> str | None:
        """Return `train`, `validation` or `test` if the folder or file is named so, else None.

        Args:
            index: Number of the sample, from 0.
        """
        return None

    def splits_of(self, indices: NDArray[np.int64]) -> list[str | None]:
        """Return `split_of` for several samples.

        Args:
            indices: Numbers of the samples, int64 (sample,).
        """
        return [self.split_of(index) for index in indices.tolist()]

    def settle(self) -> tuple[str, ...]:
        """Make the decisions that apply to all samples, before several threads or processes read them.

        Returns notes for users, one sentence each. Raises SourceError if the samples cannot be used.
        """
        return ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash that changes with the samples, but not with the location of the source."""


class Source(SampleSource):
    """Images by number. Subclass it for formats that Cotswold does not read.

    A subclass implements ``__len__``, `name`, `label`, `read` and `identity`, and may implement `split_of`.
    """

    kind: Kind = "images"
    _given_ranges = Ranges()

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """Return an image of any mode and size, decoded as late as possible.

        Args:
            index: Number of the sample, from 0.

        Raises:
            BrokenImageError: if the image cannot be read; `prepare` leaves it out.
        """

    def settle(self) -> tuple[str, ...]:
        """Determine the value range of all images. Raises SourceError if no image can be used."""
        return (str(self.ranges),) if self.ranges else ()

    @cached_property
    def ranges(self) -> Ranges:
        """Value ranges of all images with more than 8 bits, from one pass over them.

        Raises SourceError if the values cannot be those of images.
        """
        return self._given_ranges.before(self._find_ranges())

    def with_ranges(self, ranges: Ranges) -> Self:
        """Return the same images with the value ranges of others.

        Kinds of numbers that are missing in ``ranges`` keep their own.
        """
        if not ranges:
            return self
        other = copy.copy(self)
        other._given_ranges = ranges.before(self._given_ranges)
        other.__dict__.pop("ranges", None)
        return other

    def _find_ranges(self) -> Ranges:
        """Return the ranges of this source's images; empty if all have 8 bits."""
        return Ranges()


def chosen(names: Sequence[str], include: Iterable[str], exclude: Iterable[str], where: str) -> list[int]:
    """Return indices of the names that match a pattern of ``include`` (all, if empty) and none of
    ``exclude``.

    A ``*`` also matches slashes. Raises SourceError for a pattern without matches: a misspelt one would
    silently include or exclude images.
    """
    keep = set(range(len(names))) if not include else set()
    for pattern in include:
        keep |= _matching(names, pattern, where)
    for pattern in exclude:
        keep -= _matching(names, pattern, where)
    if names and not keep:
        raise SourceError(f"the patterns of include and exclude match no image of {where}; relax them")
    return sorted(keep)


def _matching(names: Sequence[str], pattern: str, where: str) -> set[int]:
    found = {index for index, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)}
    if not found:
        example = f"; the first is {names[0]!r}" if names else ""
        raise SourceError(
            f"the pattern {pattern!r} matches none of the {len(names)} names in {where}{example}"
        )
    return found


def hashed(parts: Iterable[object]) -> str:
    """Return the SHA-256 of the texts of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(part).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


_SHALLOW = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".ico", ".avif", ".heic", ".heif"]
)
"""Suffixes of formats with 8 bits. There may be millions of such files, so they are not opened."""
PNG_HEADER_BYTES = 26
"""Bytes of a PNG that contain its depth and colour type."""


def _is_shallow_png(begins: bytes) -> bool:
    """True for a PNG that Pillow decodes to 8 bits."""
    depth, colours = begins[24:25], begins[25:26]
    return begins.startswith(b"\x89PNG") and (depth, colours) != (b"\x10", b"\x00")


class Paths:
    """Files with paths, each a sample or a sequence: labels by parent folders, splits by top folders.

    Folders that contain all files, as zips often have, are skipped in the search for split names. If all
    files
    have such a name further down, at one depth (`class/train/image`), that name counts. Parent folders cannot
    be
    the classes if they lie at different depths or one name occurs in several folders (`cat/2019`,
    `dog/2019`);
    then the upper folders are. Names of classes are compared in Unicode's composed form.
    """

    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences on the choice of class folders, if there is one."""

    def __init__(self, where: str, names: Sequence[str], labels: Labels) -> None:
        self.names = list(names)
        self.labels: list[int] | None = None
        if labels == "folders":
            parents = [PurePosixPath(name).parent.name for name in names]
            if "" in parents:
                raise UnlabelledError(
                    f"{names[parents.index('')]} is in no folder of {where}, so it has no label",
                    "put it into one, exclude it,",
                )
            marks = self._class_folders(where, parents)
            self.classes = tuple(sorted(set(marks)))
            number = {name: index for index, name in enumerate(self.classes)}
            self.labels = [number[mark] for mark in marks]

    def split_of(self, index: int) -> str | None:
        """Return the split of a file's folder, or None if the folder is its label."""
        folders = self._folders[index]
        depth = self._split_depth
        is_class = self.labels is not None and (self._is_flat or not self._class_path(folders))
        if depth >= len(folders) or is_class:
            return None
        return split_of_folder(folders[depth])

    def _class_folders(self, where: str, parents: Sequence[str]) -> list[str]:
        """Return the class of each file, from the names of its folders."""
        paths = [self._class_path(folders) for folders in self._folders]
        if not any(paths) or self._is_flat:
            return [composed(parent) for parent in parents]
        if not all(paths):
            name = self.names[next(index for index, path in enumerate(paths) if not path)]
            raise UnlabelledError(
                f"{name} is in no class folder of {where}, so it has no label",
                "put it into one, exclude it,",
            )
        above: dict[str, tuple[str, ...]] = {}
        is_parent = len(set(map(len, paths))) == 1 and all(
            above.setdefault(path[-1], path[:-1]) == path[:-1] for path in paths
        )
        deep = next((index for index, path in enumerate(paths) if len(path) > 1), None)
        if deep is not None:
            which = "folders right above the files" if is_parent else "upper folders"
            mark = paths[deep][-1 if is_parent else 0]
            self.notes = (
                f"folders are nested, and the {which} are the classes: {self.names[deep]} is of "
                f"class {mark!r}",
            )
        return [path[-1] if is_parent else path[0] for path in paths]

    def _class_path(self, folders: tuple[str, ...]) -> tuple[str, ...]:
        """Return the folders that may name a file's class: without those that contain all files and the
        split.
        """
        depth = self._split_depth
        is_split = depth < len(folders) and split_of_folder(folders[depth]) is not None
        return tuple(
            composed(folder)
            for level, folder in enumerate(folders)
            if level >= self._shared and not (is_split and level == depth)
        )

    @cached_property
    def _is_flat(self) -> bool:
        """True if files lie in folders of one level, which may be named after splits."""
        depth = self._split_depth
        return depth <= self._shared and all(len(folders) <= depth + 1 for folders in self._folders)

    @cached_property
    def _folders(self) -> list[tuple[str, ...]]:
        """The folders of each file."""
        return [tuple(name.split("/")[:-1]) for name in self.names]

    @cached_property
    def _shared(self) -> int:
        """Number of folders, from the top, that contain all files; never includes a file's parent."""
        paths = set(self._folders)
        shared = 0
        for level in zip(*(path[:-1] for path in paths), strict=False):
            if len(set(level)) > 1:
                break
            shared += 1
        return shared

    @cached_property
    def _split_depth(self) -> int:
        """Number of folders above those that may be named after splits."""
        paths = set(self._folders)
        shared = 0
        for level in zip(*paths, strict=False):
            if len(set(level)) > 1 or split_of_folder(level[0]):
                break
            shared += 1
        for depth in range(shared, min(map(len, paths))):
            if all(split_of_folder(path[depth]) for path in paths):
                return depth
        return shared


class NamedFiles(Source):
    """Images in files, with labels and splits by `Paths`."""

    def __init__(self, where: str, names: Sequence[str], labels: Labels) -> None:
        if labels == "file":
            raise SourceError(f'{where} has no label file; set labels = "folders" or "none"')
        self._names = list(names)
        self._paths = Paths(where, names, labels)
        self.classes = self._paths.classes

    def __len__(self) -> int:
        return len(self._names)

    @abstractmethod
    def open_image(self, index: int) -> Image.Image:
        """Return the image as stored in its file. Raises BrokenImageError."""

    @abstractmethod
    def first_bytes(self, index: int) -> bytes:
        """Return the first bytes of a file. Raises BrokenImageError."""

    def read(self, index: int) -> Image.Image:
        """Return the image; with more than 8 bits, it is mapped by the range of all such images."""
        return shallow(self.name(index), self.open_image(index), self.ranges)

    def _find_ranges(self) -> Ranges:
        """Find images with more than 8 bits by the first bytes of files, and decode them."""
        ranges = Ranges()
        for index, name in enumerate(self._names):
            if PurePosixPath(name).suffix.lower() in _SHALLOW:
                continue
            with contextlib.suppress(BrokenImageError):  # `read` reports it again
                if not _is_shallow_png(self.first_bytes(index)):
                    with self.open_image(index) as image:
                        deep = numbers(name, image)
                        if deep is not None:
                            ranges.add(deep[None])
        return ranges

    def name(self, index: int) -> str:
        """Return the path inside the source, with forward slashes."""
        return self._names[index]

    def settle(self) -> tuple[str, ...]:
        """Return the notes on value ranges and on the choice of class folders."""
        return (*super().settle(), *self._paths.notes)

    def label(self, index: int) -> int:
        """Return the number of the class folder."""
        return UNLABELLED if self._paths.labels is None else self._paths.labels[index]

    def split_of(self, index: int) -> str | None:
        """Return the split of the folder, or None if the folder is the label."""
        return self._paths.split_of(index)

    @cached_property
    def identity(self) -> str:
        """A hash of the paths and contents of the files."""
        return hashed(["files", *self._names, *self.contents()])

    @abstractmethod
    def contents(self) -> Sequence[object]:
        """Return a digest of each file."""
