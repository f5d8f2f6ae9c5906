"""What every source of samples offers, and every source of pictures.

Knows: names, labels, classes and splits as a table. Does not know: any file format.
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

from cotswold.data.formats.image import BrokenPictureError, numbers, shallow
from cotswold.data.formats.intensity_range import Ranges
from cotswold.errors import SourceError, UnlabelledError
from cotswold.words import counted

Labels = Literal["none", "folders", "file"]
Kind = Literal["pictures", "vectors", "frames"]
"""What the samples of a source are."""

UNLABELLED = -1
"""The label of a picture without one."""

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
_BESIDE = re.compile(r"[-_. ]+|(set|data|images?|pictures?)(?![a-z])|\d+$")
"""What may stand beside the name of a split in that of a folder: `test_set`, `val2017`."""


def composed(text: str) -> str:
    """A text in Unicode's composed form (NFC): an "é" of two characters becomes one of one."""
    return unicodedata.normalize("NFC", text)


def split_named(word: str) -> str | None:
    """`train`, `validation` or `test`, where a word means one of them."""
    return _SPLITS.get(word.lower())


@lru_cache(maxsize=1 << 12)
def split_of_folder(name: str) -> str | None:
    """`train`, `validation` or `test`, where a folder is called so: `Train`, `test_set`, `val2017`."""
    return split_named(name) or split_named(_BESIDE.sub("", name.lower()))


class SampleSource(ABC):
    """Samples by number, in an order that depends on their names alone; cheap to pickle, files open late."""

    kind: Kind
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their labels; empty without labels."""
    targets: int = 0
    """Numbers that each sample has as its regression target; 0 where labels are classes or there are none."""
    lengths: NDArray[np.int64] | None = None
    """Frames in each sequence, which lie one after another; None where every sample stands alone."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are, broken ones included."""

    def __repr__(self) -> str:
        labels = f", {counted(len(self.classes), 'class')}" if self.classes else ""
        labels = f", {counted(self.targets, 'number to predict')}" if self.targets else labels
        sequences = "" if self.lengths is None else f" in {counted(len(self.lengths), 'sequence')}"
        return f"<{type(self).__name__}: {len(self):,} {self._what}{sequences}{labels}>"

    @property
    def _what(self) -> str:
        """What a sample is, as `repr` says it."""
        return self.kind

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call a sample in messages: its path inside the source."""

    @abstractmethod
    def label(self, index: int) -> int:
        """An index into `classes`, or -1 without labels."""

    def labels(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Labels, int64 (sample,), or regression targets, float32 (sample, target). Raises SourceError for a
        label that is no whole number."""
        labels = [self.label(index) for index in indices.tolist()]
        for index, label in zip(indices.tolist(), labels, strict=True):
            if not isinstance(label, int | np.integer):
                raise SourceError(
                    f"{self.name(index)}: its label is {label!r:.80}, and must be a class by number: 0 for "
                    "the first name in classes"
                )
        return np.array(labels, np.int64)

    def split_of(self, index: int) -> str | None:
        """`train`, `validation` or `test`, where folders or files are named so; None elsewhere."""
        return None

    def splits_of(self, indices: NDArray[np.int64]) -> list[str | None]:
        """`split_of` of many."""
        return [self.split_of(index) for index in indices.tolist()]

    def settle(self) -> tuple[str, ...]:
        """Decide what holds for all samples, before many threads or processes read them; a sentence for each
        thing that people should know. Raises SourceError where they cannot be used."""
        return ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash that changes when the samples do, not when the source moves."""


class Source(SampleSource):
    """Pictures by number."""

    kind: Kind = "pictures"
    _given = Ranges()

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """The picture, any mode and size, decoded as late as may be. Raises BrokenPictureError."""

    def settle(self) -> tuple[str, ...]:
        """As of all samples: what is black and white. Raises SourceError where no picture can be used."""
        return (str(self.ranges),) if self.ranges else ()

    @cached_property
    def ranges(self) -> Ranges:
        """What is black and white in pictures of more than 8 bits, from a pass over all of them; raises
        SourceError where none of their numbers can be a picture's."""
        return self._given.before(self._found())

    def levelled(self, ranges: Ranges) -> Self:
        """The same pictures, those of more than 8 bits by the ranges of others; by their own for a kind of
        numbers that the others do not have."""
        if not ranges:
            return self
        other = copy.copy(self)
        other._given = ranges.before(self._given)
        other.__dict__.pop("ranges", None)
        return other

    def _found(self) -> Ranges:
        """The ranges of the pictures themselves; none where all have 8 bits."""
        return Ranges()


def chosen(names: Sequence[str], include: Iterable[str], exclude: Iterable[str], where: str) -> list[int]:
    """Indices of the names that match a pattern of ``include`` (or all, if empty) and none of ``exclude``.

    A ``*`` also matches slashes. Raises SourceError for a pattern that matches nothing, since a misspelt one
    would let pictures slip in or out unseen.
    """
    keep = set(range(len(names))) if not include else set()
    for pattern in include:
        keep |= _matching(names, pattern, where)
    for pattern in exclude:
        keep -= _matching(names, pattern, where)
    if names and not keep:
        raise SourceError(f"the patterns of include and exclude leave no picture of {where}; relax them")
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
    """A SHA-256 over the texts of ``parts``."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(str(part).encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


_SHALLOW = frozenset(
    [".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".dib", ".webp", ".ico", ".avif", ".heic", ".heif"]
)
"""Files with these endings have 8 bits; there may be millions of them, so they are not even opened."""
PNG_HEADER_BYTES = 26
"""How far a PNG must be read to know its depth and colours."""


def _is_shallow_png(begins: bytes) -> bool:
    """Whether a file is a PNG that Pillow decodes to 8 bits."""
    depth, colours = begins[24:25], begins[25:26]
    return begins.startswith(b"\x89PNG") and (depth, colours) != (b"\x10", b"\x00")


class Paths:
    """Samples, or sequences of them, that are files with paths: labels are the parent folders, splits the
    top folders.

    Folders that hold everything else, as a zip often has one, are passed over in the search for the splits'
    names; where all files have such a name further down, at one depth (`class/train/picture`), that one
    counts. Where parent folders cannot be the classes, because they lie at different depths or one name lies
    in several folders (`cat/2019`, `dog/2019`), the upper folders are. Names of classes are compared in
    Unicode's composed form.
    """

    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Which folders are classes, where that is a choice; sentences."""

    def __init__(self, where: str, names: Sequence[str], labels: Labels) -> None:
        self.names = list(names)
        self.labels: list[int] | None = None
        if labels == "folders":
            parents = [PurePosixPath(name).parent.name for name in names]
            if "" in parents:
                raise UnlabelledError(
                    f"{names[parents.index('')]} lies in no folder of {where}, so it has no label",
                    "put it into one, exclude it,",
                )
            marks = self._class_folders(where, parents)
            self.classes = tuple(sorted(set(marks)))
            number = {name: index for index, name in enumerate(self.classes)}
            self.labels = [number[mark] for mark in marks]

    def split_of(self, index: int) -> str | None:
        """What its folder is called; None where that is its label."""
        folders = self._folders[index]
        depth = self._split_depth
        is_class = self.labels is not None and (self._is_flat or not self._class_path(folders))
        if depth >= len(folders) or is_class:
            return None
        return split_of_folder(folders[depth])

    def _class_folders(self, where: str, parents: Sequence[str]) -> list[str]:
        """The class of each file, by the names of its folders."""
        paths = [self._class_path(folders) for folders in self._folders]
        if not any(paths) or self._is_flat:
            return [composed(parent) for parent in parents]
        if not all(paths):
            name = self.names[next(index for index, path in enumerate(paths) if not path)]
            raise UnlabelledError(
                f"{name} lies in no folder of a class in {where}, so it has no label",
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
                f"folders lie inside folders, and the {which} are the classes: {self.names[deep]} is of "
                f"class {mark!r}",
            )
        return [path[-1] if is_parent else path[0] for path in paths]

    def _class_path(self, folders: tuple[str, ...]) -> tuple[str, ...]:
        """The folders of a file that may name its class: without those that hold everything, and without that
        of its split."""
        depth = self._split_depth
        is_split = depth < len(folders) and split_of_folder(folders[depth]) is not None
        return tuple(
            composed(folder)
            for level, folder in enumerate(folders)
            if level >= self._shared and not (is_split and level == depth)
        )

    @cached_property
    def _is_flat(self) -> bool:
        """Whether files lie in folders of one level, which may be called as splits."""
        depth = self._split_depth
        return depth <= self._shared and all(len(folders) <= depth + 1 for folders in self._folders)

    @cached_property
    def _folders(self) -> list[tuple[str, ...]]:
        """The folders of each file."""
        return [tuple(name.split("/")[:-1]) for name in self.names]

    @cached_property
    def _shared(self) -> int:
        """How many folders, from the top, hold all files; the parent of a file is never among them."""
        paths = set(self._folders)
        shared = 0
        for level in zip(*(path[:-1] for path in paths), strict=False):
            if len(set(level)) > 1:
                break
            shared += 1
        return shared

    @cached_property
    def _split_depth(self) -> int:
        """How many folders lie above those that may be called as splits."""
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
    """Pictures that are files with paths, as `Paths` tells."""

    def __init__(self, where: str, names: Sequence[str], labels: Labels) -> None:
        if labels == "file":
            raise SourceError(f'{where} has no label file; use labels = "folders" or "none"')
        self._names = list(names)
        self._paths = Paths(where, names, labels)
        self.classes = self._paths.classes

    def __len__(self) -> int:
        return len(self._names)

    @abstractmethod
    def opened(self, index: int) -> Image.Image:
        """The picture as its file has it. Raises BrokenPictureError."""

    @abstractmethod
    def begins(self, index: int) -> bytes:
        """The first bytes of a file. Raises BrokenPictureError."""

    def read(self, index: int) -> Image.Image:
        """The picture; if it has more than 8 bits, by the range of all that have."""
        return shallow(self.name(index), self.opened(index), self.ranges)

    def _found(self) -> Ranges:
        """Look for pictures of more than 8 bits, by the beginnings of files, and decode those."""
        ranges = Ranges()
        for index, name in enumerate(self._names):
            if PurePosixPath(name).suffix.lower() in _SHALLOW:
                continue
            with contextlib.suppress(BrokenPictureError):  # `read` names it again
                if not _is_shallow_png(self.begins(index)):
                    with self.opened(index) as picture:
                        deep = numbers(name, picture)
                        if deep is not None:
                            ranges.add(deep[None])
        return ranges

    def name(self, index: int) -> str:
        """The path inside the source, with forward slashes."""
        return self._names[index]

    def settle(self) -> tuple[str, ...]:
        """As of all pictures, and which folders are classes where that is a choice."""
        return (*super().settle(), *self._paths.notes)

    def label(self, index: int) -> int:
        """The number of the parent folder."""
        return UNLABELLED if self._paths.labels is None else self._paths.labels[index]

    def split_of(self, index: int) -> str | None:
        """What its folder is called; None where that is its label."""
        return self._paths.split_of(index)

    @cached_property
    def identity(self) -> str:
        """A hash over the paths and contents of the files."""
        return hashed(["files", *self._names, *self.contents()])

    @abstractmethod
    def contents(self) -> Sequence[object]:
        """A digest of each file."""
