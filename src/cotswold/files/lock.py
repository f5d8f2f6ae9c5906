"""One writer for each directory.

Knows: flock, which the kernel gives up when a process ends, however it ends. Does not know: what is locked.
The file `lock` says who holds it, as JSON: ``process``, ``host``, ``since`` (unix seconds) and ``what`` is
there; what it says when nobody does is of the past.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType

from cotswold.errors import BusyError, DiskFullError, MachineError
from cotswold.files.durable import is_full, write_all
from cotswold.files.opening import open_file
from cotswold.files.untrusted import MalformedError, parse_object, take

_BYTES_MAX = 4096
_ASKED_TIMES, _ASKED_SECONDS = 5, 0.02
"""So often, and after so long, a lock is tried again: whoever asks who holds it (`holder_of`) has it for a
moment."""
_held: set[int] = set()
"""Files of locks that this process holds: a fork of it, which may outlive it for a moment, holds none."""


def _let_go_in_fork() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_fork)


class DirectoryLock:
    """Held inside a `with` block; entering raises BusyError if another process, or this one, holds it."""

    def __init__(self, directory: Path, what: str = "run") -> None:
        """``what`` is in the directory."""
        self._directory, self._what = directory, what
        self._file: int | None = None

    def __enter__(self) -> DirectoryLock:
        place = self._directory / "lock"
        try:
            file = open_file(place, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            remedy = f"get write permission for {self._directory}, or copy it" if denied else "remove it"
            raise MachineError(f"{place} cannot be opened: {error.strerror}; {remedy} to go on") from error
        try:
            _take(file)
            own: dict[str, object] = {"process": os.getpid(), "host": platform.node()}
            own |= {"since": int(time.time()), "what": self._what}
            os.ftruncate(file, 0)
            write_all(file, json.dumps(own).encode())
        except OSError as error:
            content = os.pread(file, _BYTES_MAX, 0)
            holder, remedy = _holder(content)
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BusyError(
                    f"{_conflict(self._what, content)}{self._directory} is in use by {holder}; "
                    f"wait for it, {remedy}, or choose another directory"
                ) from error
            if is_full(error):
                raise DiskFullError(f"no room left to lock {self._directory}; free some space") from error
            raise MachineError(
                f"{self._directory} cannot be locked ({error.strerror}); use a file system that has locks"
            ) from error
        self._file = file
        _held.add(file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file in _held:
            _held.remove(self._file)
            os.close(self._file)
        self._file = None


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    process: int
    host: str
    since: int
    """Unix seconds."""

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this host."""
        return self.host == platform.node()


def holder_of(directory: Path) -> Holder | None:
    """Who holds the lock of a directory; None where nobody does. Raises MachineError where it cannot be
    known.

    It shares the lock for a moment, which makes nobody's attempt fail: who takes it waits for longer.
    """
    place = directory / "lock"
    try:
        file = open_file(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"{place} cannot be opened: {error.strerror}; look as the run's user") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise MachineError(
                f"{place} cannot be asked: {error.strerror}; look on the run's host"
            ) from error
        try:
            return Holder(*_said(os.pread(file, _BYTES_MAX, 0)))
        except MalformedError:  # it is just being written
            return Holder(0, "", 0)
    finally:
        os.close(file)
    return None


def _take(file: int) -> None:
    """Lock an open file; raises OSError where somebody has it for more than a moment."""
    for _ in range(_ASKED_TIMES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_ASKED_SECONDS)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _said(content: bytes) -> tuple[int, str, int]:
    """Process, host and since when, as whoever holds a lock writes them."""
    found = parse_object(content)
    return take(found, "process", int), take(found, "host", str), take(found, "since", int)


def _conflict(what: str, content: bytes) -> str:
    """That two of a kind are in one directory, or of what kind the other is, as it wrote."""
    try:
        other = take(parse_object(content), "what", str)
    except (MalformedError, ValueError):
        other = what
    if other == what or not other.isprintable():
        return f"two {what}s in one directory: "
    return f"no place for a {what}, but that of a {other}: "


def _holder(content: bytes) -> tuple[str, str]:
    """Who holds a lock, and how they are stopped, by what they wrote into its file."""
    try:
        process, host, since = _said(content)
        began = datetime.fromtimestamp(since).astimezone().isoformat(" ", "minutes")
    except (MalformedError, ValueError, OverflowError, OSError):  # it is just being written, or damaged
        return "a process that has not said which", "stop it"
    if not host.isprintable():
        host = repr(host)
    there = "" if host == platform.node() else f" on {host}"
    return f"process {process} on {host} since {began}", f"stop it (kill {process}{there})"
