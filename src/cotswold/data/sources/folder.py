"""A folder of pictures, with folders inside it.

Knows: which files are pictures (by suffix), symbolic links. Does not know: decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from PIL import Image

from cotswold.data.formats.image import BrokenPictureError, open_picture
from cotswold.data.sources.base import PNG_HEADER_BYTES, Labels, NamedFiles, chosen
from cotswold.data.sources.contents import digests
from cotswold.errors import SourceError
from cotswold.files import open_reading
from cotswold.words import counted

_NAMED = 5
"""Folders that are named in a sentence, at most."""

SUFFIXES = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".apng",
        ".gif",
        ".bmp",
        ".dib",
        ".tif",
        ".tiff",
        ".webp",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".pfm",
        ".tga",
        ".jp2",
        ".j2k",
        ".jpx",
        ".ico",
        ".icns",
        ".pcx",
        ".sgi",
        ".rgb",
        ".bw",
        ".avif",
        ".heic",
        ".heif",
        ".psd",
        ".dds",
        ".im",
        ".msp",
        ".xbm",
        ".xpm",
    ]
)
"""What a file must end with to be taken for a picture."""


def is_picture(name: str) -> bool:
    """Whether a path is that of a picture, judged by its suffix; hidden files are not."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def walk(
    root: Path,
    closed: Callable[[OSError], None] | None = None,
    entered: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """Every file below ``root``; links are followed, each folder once. ``closed`` hears of folders that may
    not be read, ``entered`` of every other."""
    seen: set[str] = set()
    for folder, below, files in os.walk(root, onerror=closed, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        if entered is not None:
            entered(Path(folder))
        below.sort()
        yield from (Path(folder) / name for name in files)


class FolderSource(NamedFiles):
    """The pictures of a folder and its sub-folders, ordered by path."""

    def __init__(
        self, root: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
    ) -> None:
        self._root = root
        self._closed: list[str] = []
        entered: list[Path] = []
        paths = walk(root, lambda error: self._closed.append(str(error.filename)), entered.append)
        names = sorted(name for path in paths if is_picture(name := path.relative_to(root).as_posix()))
        if not names:
            raise SourceError(
                f"{root} holds no pictures (no .jpg, .png, .tif, ...); give the folder that does"
            )
        self._empty = _empty(root, entered, names) if labels == "folders" else []
        names = [names[index] for index in chosen(names, include, exclude, str(root))]
        super().__init__(str(root), names, labels)

    def opened(self, index: int) -> Image.Image:
        """Open the file."""
        name = self.name(index)
        return open_picture(name, self._root / name)

    def contents(self) -> Sequence[object]:
        """Digests of all files; those that have not changed since the last time are not read again."""
        return digests(self._root, self._root, self._names)

    def begins(self, index: int) -> bytes:
        """Read the beginning of the file, if it is one; links are followed."""
        try:
            with open_reading(os.path.realpath(self._root / self.name(index))) as file:
                return file.read(PNG_HEADER_BYTES)
        except OSError as error:
            raise BrokenPictureError(f"{self.name(index)}: {error.strerror}") from error

    def settle(self) -> tuple[str, ...]:
        """As of all files, which folders could not be read, and which give no class."""
        found = [*super().settle()]
        if self._closed:
            found.append(
                f"{counted(len(self._closed), 'folder')} cannot be read, and nothing in "
                f"{'it' if len(self._closed) == 1 else 'them'} is used: {_named(self._closed)}"
            )
        if self._empty:
            found.append(f"folders without a picture: {_named(self._empty)}")
        return tuple(found)


def _empty(root: Path, folders: Iterable[Path], names: Iterable[str]) -> list[str]:
    """The uppermost folders without a picture below them; hidden ones are not counted."""
    full = {folder for name in names for folder in PurePosixPath(name).parents}
    inside = [PurePosixPath(folder.relative_to(root).as_posix()) for folder in folders]
    return sorted(
        str(each)
        for each in inside
        if each not in full
        and each.parent in full
        and not any(part.startswith((".", "__MACOSX")) for part in each.parts)
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


class PictureFile(FolderSource):
    """One picture, called as its file is."""

    def __init__(self, path: Path, labels: Labels) -> None:
        self._root, self._closed, self._empty = path.parent, [], []
        NamedFiles.__init__(self, str(path), [path.name], labels)

    def contents(self) -> Sequence[object]:
        """The digest of the file."""
        return digests(self._root / self._names[0], self._root, self._names)
