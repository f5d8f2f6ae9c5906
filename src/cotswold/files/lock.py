"""A lock that admits one writer per directory.

Knows: flock, which the kernel releases when a process ends, even by a crash. Does not know: what is locked.
The file `lock` describes its holder as JSON: ``process``, ``host``, ``since`` (Unix seconds) and ``what`` the
directory contains. Without a holder the description is outdated.
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
from cotswold.files.safe_open import open_file
from cotswold.files.untrusted_json import MalformedError, parse_object, take

_BYTES_MAX = 4096
_ATTEMPTS, _RETRY_SECONDS = 5, 0.02
"""Attempts to take a lock, and seconds between them: `holder_of` holds a lock for a moment, too."""
_held: set[int] = set()
"""Descriptors of locks that this process holds; a fork releases its copies, as it may outlive the process."""


def _release_in_fork() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_release_in_fork)


class DirectoryLock:
    """A lock for a `with` block; entering raises BusyError if a process, also this one, holds it."""

    def __init__(self, directory: Path, what: str = "run") -> None:
        """Prepare a lock of ``directory``, whose content is a ``what``."""
        self._directory, self._what = directory, what
        self._file: int | None = None

    def __enter__(self) -> DirectoryLock:
        place = self._directory / "lock"
        try:
            file = open_file(place, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            remedy = f"get write permission for {self._directory}, or copy it" if denied else "remove it"
            raise MachineError(f"{place} cannot be opened: {error.strerror}; {remedy} to continue") from error
        try:
            _acquire(file)
            own: dict[str, object] = {"process": os.getpid(), "host": platform.node()}
            own |= {"since": int(time.time()), "what": self._what}
            os.ftruncate(file, 0)
            write_all(file, json.dumps(own).encode())
        except OSError as error:
            content = os.pread(file, _BYTES_MAX, 0)
            holder, remedy = _describe_holder(content)
            os.close(file)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BusyError(
                    f"{_describe_conflict(self._what, content)}{self._directory} is in use by {holder}; "
                    f"wait for it, {remedy}, or choose another directory"
                ) from error
            if is_full(error):
                raise DiskFullError(f"no room left to lock {self._directory}; free some space") from error
            raise MachineError(
                f"{self._directory} cannot be locked ({error.strerror}); use a file system with locks"
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
    """The process that holds a lock."""

    process: int
    host: str
    since: int
    """Time since which it holds the lock, in Unix seconds."""

    @property
    def is_here(self) -> bool:
        """True if it is a process of this host."""
        return self.host == platform.node()


def holder_of(directory: Path) -> Holder | None:
    """Return the holder of a directory's lock, or None; MachineError if it cannot be determined.

    This shares the lock for a moment, during which no other attempt fails: takers retry for longer.
    """
    place = directory / "lock"
    try:
        file = open_file(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"{place} cannot be opened: {error.strerror}; try as the run's user") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise MachineError(
                f"{place} cannot be tested: {error.strerror}; try on the run's host"
            ) from error
        try:
            return Holder(*_parse_holder(os.pread(file, _BYTES_MAX, 0)))
        except MalformedError:  # it is being written at this moment
            return Holder(0, "", 0)
    finally:
        os.close(file)
    return None


def _acquire(file: int) -> None:
    """Lock an open file; OSError if another process holds it for more than a moment."""
    for _ in range(_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_RETRY_SECONDS)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _parse_holder(content: bytes) -> tuple[int, str, int]:
    """Parse process, host and time from the file of a held lock."""
    found = parse_object(content)
    return take(found, "process", int), take(found, "host", str), take(found, "since", int)


def _describe_conflict(what: str, content: bytes) -> str:
    """Describe the conflict: two of a kind in one directory, or another kind, as the holder wrote."""
    try:
        other = take(parse_object(content), "what", str)
    except (MalformedError, ValueError):
        other = what
    if other == what or not other.isprintable():
        return f"two {what}s in one directory: "
    return f"no directory for a {what}, but that of a {other}: "


def _describe_holder(content: bytes) -> tuple[str, str]:
    """Describe a lock's holder, and how to stop it, from the content of the file."""
    try:
        process, host, since = _parse_holder(content)
        began = datetime.fromtimestamp(since).astimezone().isoformat(" ", "minutes")
    except (MalformedError, ValueError, OverflowError, OSError):  # it is being written, or damaged
        return "an unknown process", "stop it"
    if not host.isprintable():
        host = repr(host)
    there = "" if host == platform.node() else f" on {host}"
    return f"process {process} on {host} since {began}", f"stop it (kill {process}{there})"
