"""Facts that names of files say: their class by folders, their split, and whether a pattern matches.

Knows: paths as text. Does not know: files, images, labels in tables.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import Literal

from cotswold.errors import SourceError, UnlabelledError

Labels = Literal["none", "folders", "file"]
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


class Paths:
    """Files with paths, each a sample or a sequence: labels by parent folders, splits by top folders.

    Folders that contain all files, as zips often have, are skipped in the search for split names. If all
    files have such a name further down, at one depth (`class/train/image`), that name counts. Parent folders
    cannot be the classes if they lie at different depths or one name occurs in several folders (`cat/2019`,
    `dog/2019`); then the upper folders are. Names of classes are compared in Unicode's composed form.
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
