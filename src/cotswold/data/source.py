"""What every source of pictures offers.

Knows: names, labels, classes and splits as a table. Does not know: any file format.
"""

from __future__ import annotations

import fnmatch
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Literal

from PIL import Image

from cotswold.errors import SourceError

Labels = Literal["none", "folders", "file"]

UNLABELLED = -1
"""The label of a picture without one."""

_SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "t10k": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
}


def split_named(word: str) -> str | None:
    """`train`, `validation` or `test`, where a word means one of them."""
    return _SPLITS.get(word.lower())


class Source(ABC):
    """Pictures by number, in an order that depends on their names alone; cheap to pickle, files open late."""

    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their labels; empty without labels."""

    @abstractmethod
    def __len__(self) -> int:
        """How many pictures there are, broken ones included."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What to call a picture in messages: its path inside the source."""

    @abstractmethod
    def read(self, index: int) -> Image.Image:
        """The picture, any mode and size, decoded as late as may be. Raises BrokenPictureError."""

    @abstractmethod
    def label(self, index: int) -> int:
        """An index into `classes`, or -1 without labels."""

    @abstractmethod
    def split_of(self, index: int) -> str | None:
        """`train`, `validation` or `test`, where folders or files are named so; None elsewhere."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A hash that changes when the pictures do (judged by names and sizes), not when the source moves."""


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


class NamedFiles(Source):
    """Pictures that are files with paths: labels are the parent folders, splits the top folders."""

    def __init__(self, where: str, names: Sequence[str], sizes: Sequence[int], labels: Labels) -> None:
        if labels == "file":
            raise SourceError(f'{where} has no label file; use labels = "folders" or "none"')
        self._where, self._names = where, list(names)
        self._identity = hashed(["files", *names, *sizes])
        self._labels: list[int] | None = None
        if labels == "folders":
            parents = [PurePosixPath(name).parent.name for name in names]
            if "" in parents:
                raise SourceError(
                    f"{names[parents.index('')]} lies in no folder of {where}, so it has no label; "
                    'put it into one, exclude it, or use labels = "none"'
                )
            self.classes = tuple(sorted(set(parents)))
            number = {name: index for index, name in enumerate(self.classes)}
            self._labels = [number[parent] for parent in parents]

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """The path inside the source, with forward slashes."""
        return self._names[index]

    def label(self, index: int) -> int:
        """The number of the parent folder."""
        return UNLABELLED if self._labels is None else self._labels[index]

    def split_of(self, index: int) -> str | None:
        """What the top folder is called."""
        return split_named(PurePosixPath(self._names[index]).parts[0]) if "/" in self._names[index] else None

    @property
    def identity(self) -> str:
        """Over the paths and sizes of the files."""
        return self._identity
