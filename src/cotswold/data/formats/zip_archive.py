"""Images in a zip file, read without unpacking the archive.

Knows: zip members. Does not know: decoding.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from cotswold.data.formats.image import BrokenImageError, open_image
from cotswold.data.sources.base import PNG_HEADER_BYTES, NamedFiles
from cotswold.data.sources.file_names import Labels, chosen
from cotswold.data.sources.folder import is_image
from cotswold.errors import SourceError

MEMBER_BYTES_MAX = 1 << 29
"""Bytes that a member may have after decompression; larger members are rejected as decompression bombs."""


def member_names(path: Path) -> list[str]:
    """Return the paths of all members of a zip. Raises SourceError."""
    with opened_zip(path) as archive:
        return archive.namelist()


def opened_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip and read its directory. Raises SourceError."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{path} cannot be read as a zip ({error}); copy it again") from error


class ZipSource(NamedFiles):
    """The images in a zip, ordered by path; each process opens its own file handle."""

    def __init__(
        self, path: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
    ) -> None:
        self._path = path
        self._archive: zipfile.ZipFile | None = None
        members = sorted(
            (i for i in self._open().infolist() if is_image(i.filename)), key=lambda i: i.filename
        )
        if not members:
            raise SourceError(f"{path} contains no images (no .jpg, .png, .tif, ...); give a zip that does")
        kept = [
            members[index] for index in chosen([m.filename for m in members], include, exclude, str(path))
        ]
        self._checks = [(member.file_size, member.CRC) for member in kept]
        super().__init__(str(path), [m.filename for m in kept], labels)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def open_image(self, index: int) -> Image.Image:
        """Decompress and open one member."""
        return open_image(self.name(index), self._unpacked(index, MEMBER_BYTES_MAX))

    def contents(self) -> Sequence[object]:
        """Return the size and CRC-32 of each member, from the zip's directory."""
        return self._checks

    def first_bytes(self, index: int) -> bytes:
        """Decompress the first bytes of one member."""
        return self._unpacked(index, PNG_HEADER_BYTES)

    def _unpacked(self, index: int, most: int) -> bytes:
        name, archive = self.name(index), self._open()
        try:
            member = archive.getinfo(name)
            if member.file_size > MEMBER_BYTES_MAX:
                raise BrokenImageError(
                    f"{name}: unpacks to {member.file_size:,} bytes (a decompression bomb?)"
                )
            with archive.open(member) as file:
                return file.read(most)
        except (
            zipfile.BadZipFile,
            RuntimeError,
            NotImplementedError,
            EOFError,
            OSError,
            zlib.error,
            lzma.LZMAError,
        ) as error:
            raise BrokenImageError(f"{name}: {error}") from error

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = opened_zip(self._path)
        return self._archive
