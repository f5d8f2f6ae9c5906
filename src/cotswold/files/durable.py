"""Writing that survives a kill or a power cut.

Knows: fsync, rename, the ways in which a disk is full. Does not know: what is written.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cotswold.errors import CotswoldError, DiskFullError

PARTIAL = ".partial"
"""Ending of files and folders that are being written; whatever bears it was not finished and may go."""

FREE_AND_RESUME = "free some space and resume, what was written before is intact"
FREE_AND_REPEAT = "free some space and run it again"
"""Remedies of a full disk, where there is something to go on from and where there is nothing yet."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: OSError) -> bool:
    """Whether a disk has no room left, or a user's share of it none."""
    return error.errno in _FULL


@contextmanager
def disk_errors(
    path: Path,
    otherwise: type[CotswoldError],
    remedy: str = FREE_AND_RESUME,
) -> Iterator[None]:
    """Turn OSError into DiskFullError, whose remedy is ``remedy``, or ``otherwise``, with a sentence about
    ``path``."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFullError(f"no room left to write {path} ({error.strerror}); {remedy}") from error
        raise otherwise(f"{path} cannot be written: {error.strerror}") from error


def write_all(file: int, content: bytes | memoryview) -> None:
    """Write every byte to an open descriptor, however small the pieces that the system takes."""
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
    """A descriptor of a new file, synced at the end; FileExistsError if there is one."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def create_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """A new file that is there whole or not at all; raises FileExistsError rather than replace one.

    Processes of several hosts, which may have the same number, can try at once: one of them succeeds.
    """
    beside = _beside(path)
    try:
        with durable_file(beside, mode) as file:
            write_all(file, content)
        os.link(beside, path)  # unlike a rename, a link fails where the name is taken
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def _beside(path: Path) -> Path:
    """Where the content of a file is written first; nobody else writes there, not on another host either."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{PARTIAL}")


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """As :func:`replacing`, but the content reaches the disk when the system likes: for files that are synced
    later, or checked after a power cut, before anybody relies on them."""
    beside = _beside(path)
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(file, "wb") as stream:
            yield stream
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends well: written beside, synced, renamed.

    Whoever reads ``path`` finds the old content or the new, whole. Where the block raises, the old one stays
    and what was written beside goes. A symbolic link at ``path`` is replaced, not followed.
    """
    with writing_whole(path) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Have ``path`` hold ``content``, whole or not at all; see :func:`replacing`."""
    with replacing(path) as file:
        file.write(content)
