"""A folder of images, with sub-folders.

Knows: image suffixes, symbolic links. Does not know: decoding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from PIL import Image

from cotswold.data.formats.image import BrokenImageError, open_image
from cotswold.data.sources.base import PNG_HEADER_BYTES, NamedFiles
from cotswold.data.sources.contents import digests
from cotswold.data.sources.file_names import Labels, chosen
from cotswold.errors import SourceError
from cotswold.files import open_reading
from cotswold.phrases import counted

_MAX_NAMED_FOLDERS = 5
"""Folders named in a message, at most."""

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
        ".dcm",
        ".dicom",
    ]
)
"""Suffixes of image files."""


def is_image(name: str) -> bool:
    """True for a path with an image suffix that is not hidden."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def walk_files(
    root: Path,
    closed: Callable[[OSError], None] | None = None,
    entered: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """Yield every file below ``root``; links are followed, each folder is visited once.

    ``closed`` is called for each unreadable folder, ``entered`` for every other.
    """
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
    """The images in a folder and its sub-folders, ordered by path."""

    def __init__(
        self, root: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
    ) -> None:
        self._root = root
        self._closed: list[str] = []
        entered: list[Path] = []
        paths = walk_files(root, lambda error: self._closed.append(str(error.filename)), entered.append)
        names = sorted(name for path in paths if is_image(name := path.relative_to(root).as_posix()))
        if not names:
            raise SourceError(
                f"{root} contains no images (no .jpg, .png, .tif, ...); give the folder that does"
            )
        self._empty = _empty(root, entered, names) if labels == "folders" else []
        names = [names[index] for index in chosen(names, include, exclude, str(root))]
        super().__init__(str(root), names, labels)

    def open_image(self, index: int) -> Image.Image:
        """Open the image file."""
        name = self.name(index)
        return open_image(name, self._root / name)

    def contents(self) -> Sequence[object]:
        """Return digests of all files; unchanged files are not read again."""
        return digests(self._root, self._root, self._names)

    def first_bytes(self, index: int) -> bytes:
        """Return the first bytes of a regular file; links are followed."""
        try:
            with open_reading(os.path.realpath(self._root / self.name(index))) as file:
                return file.read(PNG_HEADER_BYTES)
        except OSError as error:
            raise BrokenImageError(f"{self.name(index)}: {error.strerror}") from error

    def settle(self) -> tuple[str, ...]:
        """Return the notes of `NamedFiles`, and the folders that cannot be read or contain no images."""
        found = [*super().settle()]
        if self._closed:
            found.append(
                f"{counted(len(self._closed), 'folder')} cannot be read, and "
                f"{'its' if len(self._closed) == 1 else 'their'} contents are ignored: "
                f"{_name_folders(self._closed)}"
            )
        if self._empty:
            found.append(f"folders without images: {_name_folders(self._empty)}")
        return tuple(found)


def _empty(root: Path, folders: Iterable[Path], names: Iterable[str]) -> list[str]:
    """Return the uppermost folders without images below them; hidden folders are ignored."""
    full = {folder for name in names for folder in PurePosixPath(name).parents}
    inside = [PurePosixPath(folder.relative_to(root).as_posix()) for folder in folders]
    return sorted(
        str(each)
        for each in inside
        if each not in full
        and each.parent in full
        and not any(part.startswith((".", "__MACOSX")) for part in each.parts)
    )


def _name_folders(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED_FOLDERS]) + (", ..." if len(names) > _MAX_NAMED_FOLDERS else "")


class ImageFile(FolderSource):
    """A single image, named after its file."""

    def __init__(self, path: Path, labels: Labels) -> None:
        self._root, self._closed, self._empty = path.parent, [], []
        NamedFiles.__init__(self, str(path), [path.name], labels)

    def contents(self) -> Sequence[object]:
        """Return the digest of the file."""
        return digests(self._root / self._names[0], self._root, self._names)
