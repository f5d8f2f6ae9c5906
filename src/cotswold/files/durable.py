"""Writing that survives a kill or a power cut.

Knows: fsync, rename, the errors of a full disk. Does not know: the content.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from cotswold.errors import CotswoldError, DiskFullError

PARTIAL = ".partial"
"""Suffix of files and folders that are being written; leftovers with it are incomplete and may be removed."""


class DiskRemedy(StrEnum):
    """Remedies for a full disk."""

    RESUME = "free some space and resume, what was written before is intact"
    REPEAT = "free some space and run it again"
    """For a run without a checkpoint."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """True if the disk, or the user's quota on it, is full."""
    return error.errno in _FULL


@contextmanager
def disk_errors(
    path: Path,
    otherwise: type[CotswoldError],
    remedy: str = DiskRemedy.RESUME,
) -> Iterator[None]:
    """Turn OSError into DiskFullError with ``remedy``, or into ``otherwise``; the message names ``path``."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFullError(f"no room left to write {path} ({error.strerror})", remedy=remedy) from error
        raise otherwise(f"{path} cannot be written: {error.strerror}") from error


def write_all(file: int, content: bytes | memoryview) -> None:
    """Write every byte to an open descriptor, also if the system accepts only small pieces."""
    left = memoryview(content)
    while left.nbytes:
        left = left[os.write(file, left) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def durable_file(path: Path, mode: int = 0o666) -> Iterator[int]:
    """Open a new file for writing and sync it at the end; FileExistsError if the file exists."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def create_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Create a file that exists whole or not at all; FileExistsError if the name is taken.

    Processes of several hosts, which may have equal process ids, can try at once: one of them succeeds.
    """
    partial = _partial_path(path)
    try:
        with durable_file(partial, mode) as file:
            write_all(file, content)
        os.link(partial, path)  # unlike a rename, a link fails if the name is taken
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def _partial_path(path: Path) -> Path:
    """Path for the temporary content of a file, unique over processes and hosts."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Replace a file as :func:`replacing`, but without a sync.

    For files that are synced later, or checked after a power cut before they are used.
    """
    partial = _partial_path(path)
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(file, "wb") as stream:
            yield stream
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` at the end of the block, synced and renamed.

    Readers of ``path`` find the whole old or the whole new content. If the block raises, the old file stays
    and the new one is removed. A symbolic link at ``path`` is replaced, not followed.
    """
    with writing_whole(path) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, whole or not at all; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(content)
