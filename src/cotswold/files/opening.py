"""Opening files that must be ours: no symbolic link is followed, no pipe waited for.

Knows: O_NOFOLLOW, what kind of thing a name stands for. Does not know: what is in a file.

Whoever can write into a run, a store or a cache could otherwise have any file of the user's read or
truncated through a link of a known name. A folder above may be a link: ``runs -> /disk/runs`` is the user's
own choice.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_file(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of the regular file at ``path``, opened with ``flags`` of :func:`os.open`.

    Raises OSError, whose ``strerror`` is a sentence, where the last part of the path is a symbolic link or
    anything else that is no regular file; such a thing is left as it is, and never waited for. ``os.O_TRUNC``
    takes effect after that check.
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
    """The regular file at ``path`` for reading; raises OSError as :func:`open_file`."""
    return os.fdopen(open_file(path, os.O_RDONLY), "rb")


def read_bytes(path: str | Path, bytes_max: int) -> bytes:
    """What is in the regular file at ``path``; raises OSError as :func:`open_file` and beyond a size."""
    with open_reading(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return content


def real_folder(path: str | Path) -> Path:
    """``path``, made if it is not there; raises OSError where it is a link or anything but a folder."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path))
    return path
