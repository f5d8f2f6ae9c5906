"""The folder of an endpoint's Unix socket, and the removal of folders of killed processes.

Knows: locations of folders, a lock that ends with its process. Does not know: sockets.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from cotswold.errors import MachineError

_PREFIX = "cotswold-"
_LOCK_NAME = "held"
"""A file that the process keeps locked until it exits."""
_MAX_PATH_BYTES = 72
"""Longest path of a location: macOS allows 103 bytes for the path of a socket, Linux 107."""


class SocketFolder:
    """A new folder of mode 0700; `close` removes it. Raises MachineError if none can be created."""

    def __init__(self) -> None:
        self.path = short_folder()
        beside = self.path / "beside"
        self._lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        beside.rename(self.path / _LOCK_NAME)  # no other process ever sees it unlocked

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_stale_folders() -> None:
    """Remove folders that this user's exited processes left behind."""
    for path in (path for place in _folders() for path in Path(place).glob(f"{_PREFIX}*")):
        try:
            held = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another user's, already removed, or not a folder of ours
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its process is alive
            continue
        finally:
            os.close(held)
        shutil.rmtree(path, ignore_errors=True)


def short_folder() -> Path:
    """Create a folder of mode 0700 with a path short enough for a Unix socket.

    Uses the first writable location: XDG_RUNTIME_DIR, /tmp, TMPDIR. Raises MachineError if there is none.
    """
    tried = []
    for place in _folders():
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
    raise MachineError(
        f"no folder for the sockets of this process can be created ({'; '.join(tried)}); set XDG_RUNTIME_DIR "
        f"to a folder that this user can write, with a path of at most {_MAX_PATH_BYTES} bytes and no blanks"
    )


def _folders() -> list[str]:
    """Locations for folders of Unix sockets, the best first."""
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", os.environ.get("TMPDIR", ""))
    return [each for each in dict.fromkeys(named) if _is_socket_folder(each)]


def _is_socket_folder(folder: str) -> bool:
    """True if a folder is short enough for socket paths and valid in addresses."""
    is_word = folder.isascii() and folder.isprintable() and " " not in folder
    return is_word and len(folder) <= _MAX_PATH_BYTES and folder.startswith("/") and Path(folder).is_dir()
