"""Cache of object code and tuning choices in the user's cache directory, shared by processes.

Knows: files, checksums. Does not know: their contents.

A file is written under a temporary name and renamed, so that any number of processes may write it at once. A
damaged file counts as missing. The directory may be deleted at any time. The cache holds code, so a directory
that another user could write to or replace is not used, and links are not followed. A write also removes
files without a reader for 90 days, such as code of earlier versions.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

from cotswold.files import expanded, home, open_file, read_bytes, write_all

VARIABLE = "COTSWOLD_CACHE"
UNREAD_DAYS_MOST = 90
"""Days without a reader after which a file is removed; `load` records a reader once a day."""
UNFINISHED_DAYS_MOST = 1
"""Days after which a file is removed whose writer ended before it was complete."""
MAX_FILE_BYTES = 64 << 20
"""Largest file that is read; code has some tens of kilobytes."""
_DAY_S = 86400.0
_SUM_BYTES = 32
_CACHE_FILE_NAME = re.compile(r"[\w-]+-[0-9a-f]{16}\.(o|json)(?P<unfinished>\.\d+\.[0-9a-f]{8}\.partial)?")
"""Names of cached files, which end with a key; the directory may hold other files."""


def folder() -> Path:
    """Return ``$COTSWOLD_CACHE``, or ``cotswold`` in the user's cache directory; OSError without a home."""
    named = os.environ.get(VARIABLE)
    if named and not named.startswith("~"):
        return Path(named)
    found = os.environ.get("XDG_CACHE_HOME")
    if found and not named and sys.platform != "darwin":
        return Path(found) / "cotswold"
    place = home()
    if place is None:
        raise FileNotFoundError("this user has no home directory")
    if named:
        return expanded(named)
    return place.joinpath(*(("Library", "Caches") if sys.platform == "darwin" else (".cache",)), "cotswold")


_WARNED_DIRECTORIES: set[str] = set()
"""Directories with a warning already issued."""


def trusted() -> Path | None:
    """Return the directory, created if necessary, if only this user can write to it; else warn once.

    It is checked on every call: another user may have deleted and recreated it.
    """
    place: Path | None = None
    try:
        place = folder()
        if str(place) in _WARNED_DIRECTORIES:
            return None
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = place.stat()
        if hasattr(os, "getuid") and (
            about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise PermissionError("other users can write to it")
        _check_above(place)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        _refuse(place, error)
        return None
    return place


def _check_above(place: Path) -> None:
    """Raise PermissionError if other users can replace this directory by one of their own.

    They can if they may write to a directory above it; a sticky one, such as /tmp, lets them move only their
    own files.
    """
    if not hasattr(os, "getuid"):
        return
    for above in {*place.absolute().parents, *place.resolve().parents}:
        about = above.stat()
        writable = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX
        if writable or about.st_uid not in (0, os.getuid()):
            raise PermissionError(f"other users can write to {above}")


def _refuse(place: Path | None, error: OSError) -> None:
    name = "the user's cache directory" if place is None else str(place)
    if name not in _WARNED_DIRECTORIES:
        _WARNED_DIRECTORIES.add(name)
        warnings.warn(
            f"kernels are not cached in {name} ({error}); set {VARIABLE} to a directory of your own",
            RuntimeWarning,
            stacklevel=5,
        )


def load(name: str) -> bytes | None:
    """Return the content saved under a name, or None if it is missing or damaged."""
    place = trusted()
    if place is None:
        return None
    try:
        found = read_bytes(place / name, MAX_FILE_BYTES)
        _note_reader(place / name)
    except OSError:
        return None
    told, content = found[:_SUM_BYTES], found[_SUM_BYTES:]
    return content if hashlib.sha256(content).digest() == told else None


def _note_reader(file: Path) -> None:
    """Set a file's time to that of its last reader, to a day."""
    if time.time() - file.stat().st_mtime > _DAY_S:
        with suppress(OSError):  # on a read-only file system nothing is removed either
            os.utime(file)


def save(name: str, content: bytes) -> None:
    """Save content under a name; if that fails, warn and continue without it."""
    place = trusted()
    if place is None:
        return
    temporary = place / f"{name}.{os.getpid()}.{secrets.token_hex(4)}.partial"
    try:
        # not synced: a file damaged by a power cut fails its checksum
        file = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            write_all(file, hashlib.sha256(content).digest() + content)
        finally:
            os.close(file)
        temporary.replace(place / name)
        _remove_old(place)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        _refuse(place, error)


def _remove_old(place: Path) -> None:
    """Remove cached files without a reader for long; other processes may do the same at once."""
    now = time.time()
    for file in place.iterdir():
        ours = _CACHE_FILE_NAME.fullmatch(file.name)
        if ours is None:
            continue
        days = UNFINISHED_DAYS_MOST if ours["unfinished"] else UNREAD_DAYS_MOST
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * _DAY_S:
                file.unlink()
