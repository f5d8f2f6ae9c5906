"""The folder in which an endpoint has its Unix socket, and folders whose processes were killed.

Knows: places of folders, a lock that ends with its process. Does not know: sockets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "cotswold-"
_HELD = "held"
"""A file that the process has locked as long as it lives."""


class SocketFolder:
    """A new folder of mode 0700; `close` removes it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_runtime_folder()))
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
    for path in Path(_runtime_folder()).glob(f"{_PREFIX}*"):
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


def _runtime_folder() -> str:
    """Where folders of Unix sockets are made: their paths have a hundred characters at most."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder and len(folder) < 40 and Path(folder).is_dir() else "/tmp"
