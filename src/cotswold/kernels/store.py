"""What is remembered between processes: object code and choices, in the user's cache directory.

Knows: files, checksums. Does not know: what is in them.

A file is written beside and renamed, so that any number of processes may write it at once; one that is
damaged is as if it were not there. The directory may be deleted at any time. One that another user could
write to is not read, for code comes from it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

VARIABLE = "COTSWOLD_CACHE"
_SUM_BYTES = 32


def folder() -> Path:
    """``$COTSWOLD_CACHE``, or ``cotswold`` in the user's cache directory."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "cotswold"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotswold"


@lru_cache(maxsize=8)
def _trusted(place: Path) -> bool:
    """Whether the folder is there, or was made, and is the user's alone; says once if not."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = place.stat()
        if hasattr(os, "getuid") and (
            about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        ):
            raise PermissionError("others can write to it")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        _warn(place, error)
        return False
    return True


def _warn(place: Path, error: OSError) -> None:
    warnings.warn(
        f"kernels are not remembered in {place} ({error}); set {VARIABLE} to a folder of your own",
        RuntimeWarning,
        stacklevel=4,
    )


def recall(name: str) -> bytes | None:
    """What was remembered under this name, if it is whole."""
    place = folder()
    if not _trusted(place):
        return None
    try:
        found = (place / name).read_bytes()
    except OSError:
        return None
    told, content = found[:_SUM_BYTES], found[_SUM_BYTES:]
    return content if hashlib.sha256(content).digest() == told else None


def remember(name: str, content: bytes) -> None:
    """Keep something under a name; a full disk only costs the memory of it."""
    place = folder()
    if not _trusted(place):
        return
    temporary = place / f"{name}.{os.getpid()}.{hashlib.sha256(os.urandom(8)).hexdigest()[:8]}"
    try:
        temporary.write_bytes(hashlib.sha256(content).digest() + content)
        temporary.replace(place / name)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        _warn(place, error)
