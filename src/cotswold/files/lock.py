"""One writer for each directory.

Knows: flock, which the kernel gives up when a process ends, however it ends. Does not know: what is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from cotswold.errors import BusyError, MachineError
from cotswold.files.opening import open_file


class DirectoryLock:
    """Held inside a `with` block; entering raises BusyError if another process, or this one, holds it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: int | None = None

    def __enter__(self) -> DirectoryLock:
        place = self._directory / "lock"
        try:
            file = open_file(place, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise MachineError(f"{place} cannot be opened: {error.strerror}; remove it to go on") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.write(file, str(os.getpid()).encode())
        except OSError as error:
            holder = os.read(file, 20).decode(errors="replace") or "unknown"
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BusyError(
                    f"two runs in one directory: {self._directory} is in use by process {holder}; "
                    "wait for it, or choose another directory"
                ) from error
            raise MachineError(
                f"{self._directory} cannot be locked ({error.strerror}); use a file system that has locks"
            ) from error
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
