"""What is kept between processes: object code and choices, in the user's cache directory.

Knows: files, checksums. Does not know: what is in them.

A file is written beside and renamed, so that any number of processes may write it at once; one that is
damaged is as if it were not there. The directory may be deleted at any time. One that another user could
write to, or replace, is not read, for code comes from it; nor is a link followed. What nobody has read for a
season, as code of earlier versions, is removed when something new is written.
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
"""After how many days without a reader a file is removed; `load` notes a reader once a day."""
UNFINISHED_DAYS_MOST = 1
"""The same for one that a process was writing when it ended."""
BYTES_MOST = 64 << 20
"""The largest file that is read: code has some tens of kilobytes."""
_DAY_S = 86400.0
_SUM_BYTES = 32
_OURS = re.compile(r"[\w-]+-[0-9a-f]{16}\.(o|json)(?P<unfinished>\.\d+\.[0-9a-f]{8}\.partial)?")
"""Names of what is kept, which end with a key: the named folder may hold files of others, too."""


def folder() -> Path:
    """``$COTSWOLD_CACHE``, or ``cotswold`` in the user's cache directory; OSError for a user without one."""
    named = os.environ.get(VARIABLE)
    if named and not named.startswith("~"):
        return Path(named)
    found = os.environ.get("XDG_CACHE_HOME")
    if found and not named and sys.platform != "darwin":
        return Path(found) / "cotswold"
    place = home()
    if place is None:
        raise FileNotFoundError("this user has no home")
    if named:
        return expanded(named)
    return place.joinpath(*(("Library", "Caches") if sys.platform == "darwin" else (".cache",)), "cotswold")


_REFUSED: set[str] = set()
"""Folders that were warned of."""


def trusted() -> Path | None:
    """The folder if it is there, or was made, and is the user's alone; None, said once, if not.

    It is looked at each time, for it may have been deleted and made again by somebody else.
    """
    place: Path | None = None
    try:
        place = folder()
        if str(place) in _REFUSED:
            return None
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = place.stat()
        if hasattr(os, "getuid") and (
            about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise PermissionError("others can write to it")
        _check_above(place)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        _refuse(place, error)
        return None
    return place


def _check_above(place: Path) -> None:
    """Raise PermissionError where others can put a folder of theirs in the place of this one.

    They can if they may write to a folder above it; a sticky one, such as /tmp, lets them move only theirs.
    """
    if not hasattr(os, "getuid"):
        return
    for above in {*place.absolute().parents, *place.resolve().parents}:
        about = above.stat()
        writable = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX
        if writable or about.st_uid not in (0, os.getuid()):
            raise PermissionError(f"others can write to {above}")


def _refuse(place: Path | None, error: OSError) -> None:
    name = "the user's cache directory" if place is None else str(place)
    if name not in _REFUSED:
        _REFUSED.add(name)
        warnings.warn(
            f"kernels are not remembered in {name} ({error}); set {VARIABLE} to a folder of your own",
            RuntimeWarning,
            stacklevel=5,
        )


def load(name: str) -> bytes | None:
    """What was saved under this name, if it is whole."""
    place = trusted()
    if place is None:
        return None
    try:
        found = read_bytes(place / name, BYTES_MOST)
        _note_reader(place / name)
    except OSError:
        return None
    told, content = found[:_SUM_BYTES], found[_SUM_BYTES:]
    return content if hashlib.sha256(content).digest() == told else None


def _note_reader(file: Path) -> None:
    """Let a file's time be that of its last reader, to a day."""
    if time.time() - file.stat().st_mtime > _DAY_S:
        with suppress(OSError):  # on a medium that is read only nothing is removed either
            os.utime(file)


def save(name: str, content: bytes) -> None:
    """Keep something under a name; a full disk only costs the memory of it."""
    place = trusted()
    if place is None:
        return
    temporary = place / f"{name}.{os.getpid()}.{secrets.token_hex(4)}.partial"
    try:
        # not synced: what a power cut leaves does not have its checksum
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
    """Remove files of ours that nobody has read for long; other processes may do the same at once."""
    now = time.time()
    for file in place.iterdir():
        ours = _OURS.fullmatch(file.name)
        if ours is None:
            continue
        days = UNFINISHED_DAYS_MOST if ours["unfinished"] else UNREAD_DAYS_MOST
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * _DAY_S:
                file.unlink()
