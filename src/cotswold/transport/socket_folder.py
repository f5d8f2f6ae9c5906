"""The folder in which an endpoint has its Unix socket, and folders whose processes were killed.

Knows: places of folders, a lock that ends with its process. Does not know: sockets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from cotswold.errors import MachineError

_PREFIX = "cotswold-"
_HELD = "held"
"""A file that the process has locked as long as it lives."""
_PLACE_BYTES = 72
"""Longest path of a place: macOS takes 103 bytes for the path of a socket, Linux 107."""


class SocketFolder:
    """A new folder of mode 0700; `close` removes it. Raises MachineError where none can be made."""

    def __init__(self) -> None:
        self.path = short_folder()
        beside = self.path / "beside"
        self._held = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        beside.rename(self.path / _HELD)  # nobody sees it unlocked

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def remove_left_folders() -> None:
    """Remove folders of this user's processes that ended without doing so."""
    for path in (path for place in _places() for path in Path(place).glob(f"{_PREFIX}*")):
        try:
            held = os.open(path / _HELD, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another user's, gone meanwhile, or of something else
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its process lives
            continue
        finally:
            os.close(held)
        shutil.rmtree(path, ignore_errors=True)


def short_folder() -> Path:
    """A new folder of mode 0700, in which a Unix socket has room for its path.

    It lies in the first place that can be written: XDG_RUNTIME_DIR, /tmp, TMPDIR. Raises MachineError where
    there is none.
    """
    tried = []
    for place in _places():
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
    raise MachineError(
        f"no folder for the sockets of this process can be made ({'; '.join(tried)}); set XDG_RUNTIME_DIR to "
        f"a folder that this user can write, with a path of at most {_PLACE_BYTES} bytes and no blanks"
    )


def _places() -> list[str]:
    """Where folders of Unix sockets may be made, the best first."""
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", os.environ.get("TMPDIR", ""))
    return [each for each in dict.fromkeys(named) if _is_place(each)]


def _is_place(folder: str) -> bool:
    """Whether paths of sockets may begin so, and addresses can say them."""
    is_word = folder.isascii() and folder.isprintable() and " " not in folder
    return is_word and len(folder) <= _PLACE_BYTES and folder.startswith("/") and Path(folder).is_dir()
