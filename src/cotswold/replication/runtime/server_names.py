"""Names of a host's servers and disks: unique in the cluster.

Knows: the files of a host's folder with these names, which names are taken, which disks are drained. Does not
know: processes, who supplies the taken names.

    condition                                           name of a server
    its disk is in the file                             the successor of the disk's last server
    the host's folder has the controllers' metadata,    the disk's name: no server had a name before
      which do not exist yet
    otherwise                                           the first disk name that controllers do not know, once
                                                        one has listed the known names

Two hosts with one name, such as a second `add` on a machine, choose one after the other. Each skips the names
that the other has just taken.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

from cotswold.files import replace_file
from cotswold.files.untrusted_json import MalformedError, parse_object, read_object
from cotswold.replication.replica.saved_bucket import DAMAGED_SUFFIX, disk_of, next_server_name

FILE, DRAINED_FILE = "names.json", "drained.json"
"""Files in a folder: the newest server name of each disk, and the disks that an operator drained."""
_RECENT_SECONDS = 60.0
"""Seconds after which controllers know every server with a new name."""
_BYTES = 1 << 16


class ServerNames:
    """Names of one host."""

    def __init__(self, folder: Path, prefix: str, servers: int, *, is_new: bool) -> None:
        """``is_new``: True if no server of the cluster had a name before."""
        self._path, self._prefix, self._servers = folder / FILE, prefix, servers
        self._drained_path = folder / DRAINED_FILE
        self._last: dict[str, str] = {}
        with suppress(FileNotFoundError, MalformedError):
            self._last = {disk: str(name) for disk, name in read_object(self._path).items()}
        numbers = sorted(filter(str.isdecimal, map(self._number, self._last)), key=int)
        self.disks = tuple(self._disk(each) for each in numbers[:servers])
        """Disks with known names."""
        self.drained: frozenset[str] = frozenset()
        """Drained disks, which no process may use, by the controllers' last reply."""
        with suppress(FileNotFoundError, MalformedError):
            self.drained = frozenset(map(str, read_object(self._drained_path))) & {*self.disks}
        if is_new:
            self._reserve(self._disk(str(number)) for number in range(servers))

    def foreign(self, disks: Iterable[str]) -> list[str]:
        """Return the names of disks, or of disks moved aside, that belong to no server of this host."""
        own = re.compile(rf"{re.escape(self._prefix)}-[0-9]+({re.escape(DAMAGED_SUFFIX)}[0-9]+)?")
        return sorted(each for each in disks if own.fullmatch(each) is None)

    @property
    def lacking(self) -> int:
        """Number of disks without a name."""
        return self._servers - len(self.disks)

    def choose(self, known: Iterable[str]) -> tuple[str, ...]:
        """Name the remaining disks and return the new names; ``known``: server names that controllers
        know."""
        before, taken = self.disks, {disk_of(each) for each in known}
        with _RecentNames(self._prefix) as given:
            self._reserve(
                each for each in map(self._disk, map(str, count())) if each not in taken | given.disks
            )
            given.add(self.disks[len(before) :])
        return self.disks[len(before) :]

    def next_name(self, disk: str) -> str:
        """Return the name of the next server with this disk; names are never reused. Raises OSError if it
        cannot be recorded."""
        found = next_server_name(self._last[disk]) if disk in self._last else disk
        last = {**self._last, disk: found}
        replace_file(self._path, json.dumps(last).encode())
        self._last = last
        return found

    def drain(self, disks: Collection[str]) -> None:
        """Record the drained disks; all others may be used. Raises OSError if they cannot be recorded."""
        if self.drained != frozenset(disks):
            written = json.dumps(dict.fromkeys(sorted(disks), True))
            replace_file(self._drained_path, written.encode())
            self.drained = frozenset(disks)

    def _reserve(self, free: Iterable[str]) -> None:
        found = list(self.disks)
        for each in free:
            if len(found) == self._servers:
                break
            if each not in found:
                found.append(each)
        self.disks = tuple(found)

    def _disk(self, number: str) -> str:
        return f"{self._prefix}-{number}"

    def _number(self, disk: str) -> str:
        """Return the number of one of this host's disks; for any other disk, text that is not a number."""
        return disk.removeprefix(f"{self._prefix}-")


class _RecentNames:
    """Disk names that processes of this machine have just taken; use it in a ``with`` statement."""

    def __init__(self, prefix: str) -> None:
        self._path = Path(tempfile.gettempdir()) / f"cotswold-names-{os.getuid()}-{prefix}"
        self._file = -1
        self._used_at: dict[str, float] = {}

    def __enter__(self) -> _RecentNames:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        with suppress(MalformedError):
            found = parse_object(os.pread(self._file, _BYTES, 0))
            self._used_at = {name: when for name, when in found.items() if isinstance(when, float)}
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def disks(self) -> set[str]:
        now = time.time()
        return {name for name, when in self._used_at.items() if abs(now - when) < _RECENT_SECONDS}

    def add(self, disks: Collection[str]) -> None:
        self._used_at = {name: when for name, when in self._used_at.items() if name in self.disks}
        self._used_at |= dict.fromkeys(disks, time.time())
        with suppress(OSError):  # a full disk: controllers soon know the names
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(self._used_at).encode(), 0)
