"""Open files safely: without following symbolic links, and without waiting for pipes.

Knows: O_NOFOLLOW, types of files. Does not know: a file's content.

Otherwise a user who can write into a run, a store or a cache could place a link under a known name, and have
any file of this user's read or truncated. A folder above may be a link: ``runs -> /disk/runs`` is the user's
own choice.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open the regular file at ``path`` with ``flags`` of :func:`os.open`, and return its descriptor.

    Raises OSError, whose ``strerror`` is a sentence, if the last part of the path is a symbolic link or no
    regular file. Such a file stays unchanged, and the call never waits for it. ``os.O_TRUNC`` takes effect
    after this check.
    """
    truncate = flags & os.O_TRUNC
    wanted = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, wanted, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and Path(path).is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from error
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is no regular file", str(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if truncate:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def open_reading(path: str | Path) -> BinaryIO:
    """Open the regular file at ``path`` for reading; raises OSError as :func:`open_file`."""
    return os.fdopen(open_file(path, os.O_RDONLY), "rb")


def read_bytes(path: str | Path, bytes_max: int) -> bytes:
    """Read the regular file at ``path``; OSError as :func:`open_file`, and if it exceeds ``bytes_max``."""
    with open_reading(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return content


def real_folder(path: str | Path) -> Path:
    """Return ``path``, created if it is missing; OSError if it is a link or no folder."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path))
    return path
