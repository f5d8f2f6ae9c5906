"""Digests of file contents, cached between processes by size, times and inode.

Knows: files, the user's cache directory. Does not know: the meaning of the contents, sources.

The first digest of a file reads all of it. Later calls read it again only if its name, size, modification
time, change time or inode differ from the record. A file that changed less than `SETTLED_NS` before it
was read is not recorded, because a later change may leave the same times. A record may be deleted at any
time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from pathlib import Path

from cotswold.data.sources.base import hashed
from cotswold.files import open_reading, replace_file
from cotswold.host import granted_cores
from cotswold.kernels.compile import code_cache

SETTLED_NS = 2_000_000_000
"""Resolution of the coarsest time stamps (FAT), nanoseconds."""
UNREADABLE = "unreadable"
"""Digest of a file that cannot be read."""
_DAYS_MAX = 90
"""Days without an update after which a record is deleted."""
_KEY_BYTES, _DIGEST_BYTES = 16, 32
_ROW_BYTES = _KEY_BYTES + _DIGEST_BYTES
_FORMAT = b"cotswold digests 1\n"
_ROWS_MAX = 1 << 24
_BATCH = 1 << 12

_bytes_most: ContextVar[float] = ContextVar("bytes_most", default=inf)
Record = dict[bytes, bytes]
"""Digests, keyed by a hash of the file's name, size, times and inode."""


class CostlyError(Exception):
    """Raised instead of reading more bytes than allowed.

    ``was_read`` is True if the source was read before and the names, sizes, times or inodes of some files
    have changed since.
    """

    def __init__(self, was_read: bool) -> None:
        super().__init__()
        self.is_read = was_read


@contextmanager
def reading_at_most(count: int) -> Iterator[None]:
    """Make `digests` in this thread raise CostlyError if it would read more than ``count`` bytes."""
    token = _bytes_most.set(count)
    try:
        yield
    finally:
        _bytes_most.reset(token)


@dataclass(frozen=True)
class ContentIdentity:
    """Compute the identity of a source from the contents of its files when called.

    ``where`` is the source, under which digests are recorded. ``names`` are the files, relative to
    ``folder``. ``other_parts`` are further values that determine the samples.
    """

    where: Path
    folder: Path
    names: tuple[str, ...]
    other_parts: tuple[object, ...] = ()

    def __call__(self) -> str:
        """Return a SHA-256 of ``other_parts`` and the contents of all files."""
        return hashed([*self.other_parts, *digests(self.where, self.folder, self.names)])


def digests(where: Path, folder: Path, names: Sequence[str]) -> list[str]:
    """Return SHA-256 digests of files, `UNREADABLE` for unreadable ones.

    ``where`` is the source to which the files belong, ``names`` are relative to ``folder``. Raises
    CostlyError within `reading_at_most`.
    """
    known, begun_ns = _read(where), time.time_ns()
    record, found = Record(), dict[str, bytes]()
    for name in names if known else ():
        with suppress(OSError):
            key, _ = _key(name, (folder / name).stat())
            if key in known:
                record[key] = found[name] = known[key]
    unknown = [name for name in names if name not in found]
    if _bytes_most.get() < inf and _bytes_of(folder, unknown) > _bytes_most.get():
        raise CostlyError(bool(known))
    with ThreadPoolExecutor(granted_cores(environ={})) as threads:
        for start in range(0, len(unknown), _BATCH):
            batch = unknown[start : start + _BATCH]
            hashes = threads.map(_hashed, batch, [os.path.realpath(folder / name) for name in batch])
            for name, (key, changed_ns, digest) in zip(batch, hashes, strict=True):
                if digest:
                    found[name] = digest
                if key and begun_ns - changed_ns > SETTLED_NS:
                    record[key] = digest
    if record != known:
        _write(where, record)
    return [found[name].hex() if name in found else UNREADABLE for name in names]


def _bytes_of(folder: Path, names: Sequence[str]) -> int:
    """Return the total size in bytes of the existing files."""
    count = 0
    for name in names:
        with suppress(OSError):
            count += (folder / name).stat().st_size
    return count


def forget(where: Path) -> None:
    """Delete the record of a source, so that its files are read again."""
    with suppress(OSError):
        _record_file(where).unlink(missing_ok=True)


def _key(name: str, about: os.stat_result) -> tuple[bytes, int]:
    """Return the key of a file and the time of its last change in nanoseconds."""
    told = f"{name}\0{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
    key = hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES)
    return key.digest(), max(about.st_mtime_ns, about.st_ctime_ns)


def _hashed(name: str, path: str) -> tuple[bytes, int, bytes]:
    """Return the key, time of the last change and digest of a file.

    The digest is empty if the file cannot be read. The key is empty if the file changes during reading.
    """
    try:
        with open_reading(path) as file:
            key, changed_ns = _key(name, os.fstat(file.fileno()))
            digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]  # it is buffered
            is_same = _key(name, os.fstat(file.fileno()))[0] == key
    except OSError:
        return b"", 0, b""
    return (key if is_same else b""), changed_ns, digest


def _record_file(where: Path) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(where))).hexdigest()[:32]
    return code_cache.folder() / "sources" / f"{name}.digests"


def _read(where: Path) -> Record:
    """Read the record of a source; empty if it is missing, damaged or owned by another user."""
    try:
        with open_reading(_record_file(where)) as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_size > _ROWS_MAX * _ROW_BYTES:
                return {}
            content = file.read()
    except OSError:
        return {}
    seal, rows = content[len(_FORMAT) :][:_DIGEST_BYTES], content[len(_FORMAT) + _DIGEST_BYTES :]
    if not content.startswith(_FORMAT) or hashlib.sha256(rows).digest() != seal:
        return {}
    starts = range(0, len(rows) - _ROW_BYTES + 1, _ROW_BYTES)
    return {rows[at : at + _KEY_BYTES]: rows[at + _KEY_BYTES : at + _ROW_BYTES] for at in starts}


def _write(where: Path, record: Record) -> None:
    """Write a record and delete outdated ones. A full disk is ignored."""
    rows = b"".join(key + digest for key, digest in record.items())
    with suppress(OSError):
        path = _record_file(where)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _FORMAT + hashlib.sha256(rows).digest() + rows)
        oldest = time.time() - 86400 * _DAYS_MAX
        for each in path.parent.glob("*.digests*"):
            if each.stat().st_mtime < oldest:
                each.unlink()
