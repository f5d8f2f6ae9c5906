"""Files of numbers, possibly compressed, from untrusted sources.

Knows: gzip, members of .npz, limits on unpacked sizes. Does not know: the meaning of the numbers.

A file of a few kilobytes can unpack to more than the memory. So sizes are read and compared with
`UNPACKED_BYTES_MAX` before memory is allocated, and unpacked data is counted block by block.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cotswold.errors import SourceError
from cotswold.files import open_reading

UNPACKED_BYTES_MAX = 4 << 30
"""Maximum unpacked size of a compressed array. Every process holds such an array in memory, so larger ones
are better stored uncompressed.
"""
_PIECE_BYTES = 1 << 20


@contextmanager
def open_binary(path: Path, remedy: str = "download it again") -> Iterator[BinaryIO]:
    """Open a file, unpacking .gz; links are followed, and pipes raise an error instead of blocking.

    Errors while the file is open raise SourceError with the remedy.
    """
    try:
        with open_reading(os.path.realpath(path)) as file:
            if path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    yield unpacked  # type: ignore[misc]  # it reads like any binary file
            else:
                yield file
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read ({_describe_error(error)}); {remedy}") from error


def size_of(path: Path) -> int:
    """Return the unpacked size of a file. Raises SourceError above the limit."""
    with open_binary(path) as file:
        if path.suffix != ".gz":
            return os.fstat(file.fileno()).st_size
        total = 0
        while piece := file.read(_PIECE_BYTES):
            total += len(piece)
            if total > UNPACKED_BYTES_MAX:
                raise size_error(path, total)
    return total


def bytes_in(path: Path, count: int, offset: int = 0) -> NDArray[np.uint8]:
    """Return ``count`` bytes of a file from ``offset`` on, mapped or unpacked; `size_of` must have found
    them.
    """
    if path.suffix != ".gz":
        return np.memmap(path, np.uint8, "r", offset, (count,)) if count else np.empty(0, np.uint8)
    found = np.empty(count, np.uint8)
    with open_binary(path) as file:
        file.seek(offset)
        if file.readinto(found) != count:  # type: ignore[attr-defined]  # a buffered reader has it
            raise SourceError(f"{path} has become shorter; download it again")
    return found


def size_error(what: Path | str, count: int) -> SourceError:
    """Return the error for data that unpacks to too many bytes."""
    return SourceError(
        f"{what} unpacks to {count:,} bytes or more (a decompression bomb?); if you trust it, unpack it "
        "first, an array to .npy, which is read in place"
    )


class Npz:
    """The arrays of an .npz: names, shapes and dtypes are read at once, values on access."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with self._open() as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    shape, dtype = header(file)
                    body = member.file_size - file.tell()
                needed = math.prod(shape) * dtype.itemsize
                if dtype.hasobject:
                    raise ValueError(
                        f"{member.filename} contains Python objects; convert texts with .astype(str)"
                    )
                if needed != body:
                    raise ValueError(f"{member.filename} is not an array of {shape} {dtype}")
                self.shapes[member.filename.removesuffix(".npy")] = shape, dtype

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array, unpacked. Raises SourceError above the limit."""
        shape, dtype = self.shapes[name]
        needed = math.prod(shape) * dtype.itemsize
        if needed > UNPACKED_BYTES_MAX:
            raise size_error(f"{self._path}:{name}", needed)
        with self._open() as archive, archive.open(f"{name}.npy") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array

    @contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        try:
            with open_reading(os.path.realpath(self._path)) as file, zipfile.ZipFile(file) as archive:
                yield archive
        except SourceError:
            raise
        except Exception as error:  # zip, zlib and format errors of every kind
            raise SourceError(
                f"{self._path} cannot be read as .npz ({_describe_error(error)}); save it again with "
                "numpy.savez"
            ) from error


def header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array in .npy format, from its header."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _describe_error(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
