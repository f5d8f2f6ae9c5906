"""A folder of pictures, with folders inside it.

Knows: which files are pictures (by suffix), symbolic links. Does not know: decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from PIL import Image

from cotswold.data.picture import BrokenPictureError, open_picture
from cotswold.data.source import PNG_HEADER_BYTES, Labels, NamedFiles, chosen
from cotswold.errors import SourceError
from cotswold.files import open_reading

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


def walk(root: Path, closed: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Every file below ``root``; links are followed, each folder once. ``closed`` hears of folders that may
    not be read."""
    seen: set[str] = set()
    for folder, below, files in os.walk(root, onerror=closed, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below.sort()
        yield from (Path(folder) / name for name in files)


class FolderSource(NamedFiles):
    """The pictures of a folder and its sub-folders, ordered by path."""

    def __init__(
        self, root: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
    ) -> None:
        self._root = root
        self._closed: list[str] = []
        paths = walk(root, lambda error: self._closed.append(str(error.filename)))
        names = sorted(name for path in paths if is_picture(name := path.relative_to(root).as_posix()))
        if not names:
            raise SourceError(
                f"{root} holds no pictures (no .jpg, .png, .tif, ...); give the folder that does"
            )
        names = [names[index] for index in chosen(names, include, exclude, str(root))]
        sizes = [_size(root / name) for name in names]
        super().__init__(str(root), names, sizes, labels)

    def opened(self, index: int) -> Image.Image:
        """Open the file."""
        name = self.name(index)
        return open_picture(name, self._root / name)

    def begins(self, index: int) -> bytes:
        """Read the beginning of the file, if it is one; links are followed."""
        try:
            with open_reading(os.path.realpath(self._root / self.name(index))) as file:
                return file.read(PNG_HEADER_BYTES)
        except OSError as error:
            raise BrokenPictureError(f"{self.name(index)}: {error.strerror}") from error

    def settle(self) -> tuple[str, ...]:
        """As of all files, and which folders could not be read."""
        named = ", ".join(self._closed[:_NAMED]) + (", ..." if len(self._closed) > _NAMED else "")
        count = len(self._closed)
        closed = (f"{count:,} folders may not be read and were left out: {named}",) if count else ()
        return (*super().settle(), *closed)


class PictureFile(FolderSource):
    """One picture, called as its file is."""

    def __init__(self, path: Path, labels: Labels) -> None:
        self._root, self._closed = path.parent, []
        NamedFiles.__init__(self, str(path), [path.name], [_size(path)], labels)


def _size(path: Path) -> int:
    """Bytes, or -1 for a link that leads nowhere."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
