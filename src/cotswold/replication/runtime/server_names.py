"""What servers of a host are called, and their disks: names that nobody else has had.

Knows: the files of a host's folder that have them, which are taken, which are drained. Does not know:
processes, who is asked what is taken.

    what is so                                          what a server is called
    its disk is in the file                             as the next after the last that had it
    the host's folder has the controllers' state, which the disk's name: nobody was called anything before
      does not exist yet
    else                                                by the first disk's name that controllers do not know,
                                                        once one has said which they do

Two hosts of one name, such as a second `add` on a machine, ask one after the other, and pass over what the
other was given a moment ago.
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
from cotswold.replication.replica.saved_bucket import ASIDE, disk_of, next_of

FILE, DRAINED_FILE = "names.json", "drained.json"
"""Of a folder: the newest name of a server for each disk, and the disks that an operator drained."""
_GIVEN_SECONDS = 60.0
"""After which controllers know of whoever was given a name."""
_BYTES = 1 << 16


class Names:
    """Those of one host."""

    def __init__(self, folder: Path, prefix: str, servers: int, *, is_new: bool) -> None:
        """``is_new``: nobody was called anything before."""
        self._path, self._prefix, self._servers = folder / FILE, prefix, servers
        self._drained_path = folder / DRAINED_FILE
        self._last: dict[str, str] = {}
        with suppress(FileNotFoundError, MalformedError):
            self._last = {disk: str(name) for disk, name in read_object(self._path).items()}
        numbers = sorted(filter(str.isdecimal, map(self._number, self._last)), key=int)
        self.disks = tuple(self._disk(each) for each in numbers[:servers])
        """Those that are known."""
        self.drained: frozenset[str] = frozenset()
        """Those that no process is to have, as controllers said last."""
        with suppress(FileNotFoundError, MalformedError):
            self.drained = frozenset(map(str, read_object(self._drained_path))) & {*self.disks}
        if is_new:
            self._take(self._disk(str(number)) for number in range(servers))

    def strange(self, disks: Iterable[str]) -> list[str]:
        """Of names of disks, or of such moved aside, those that no server of this host goes on from."""
        own = re.compile(rf"{re.escape(self._prefix)}-[0-9]+({re.escape(ASIDE)}[0-9]+)?")
        return sorted(each for each in disks if own.fullmatch(each) is None)

    @property
    def lacking(self) -> int:
        """How many are to be chosen yet."""
        return self._servers - len(self.disks)

    def choose(self, known: Iterable[str]) -> tuple[str, ...]:
        """Name the disks that have no name; ``known``: names of servers that controllers know. Those that are
        new."""
        before, taken = self.disks, {disk_of(each) for each in known}
        with _Given(self._prefix) as given:
            self._take(each for each in map(self._disk, map(str, count())) if each not in taken | given.disks)
            given.give(self.disks[len(before) :])
        return self.disks[len(before) :]

    def next_of(self, disk: str) -> str:
        """The name of the next server that has a disk: whoever has ended does not come back. Raises OSError
        where that cannot be written down."""
        found = next_of(self._last[disk]) if disk in self._last else disk
        last = {**self._last, disk: found}
        replace_file(self._path, json.dumps(last).encode())
        self._last = last
        return found

    def drain(self, disks: Collection[str]) -> None:
        """No process is to have these, and all others may have one. Raises OSError where that cannot be
        written down."""
        if self.drained != frozenset(disks):
            written = json.dumps(dict.fromkeys(sorted(disks), True))
            replace_file(self._drained_path, written.encode())
            self.drained = frozenset(disks)

    def _take(self, free: Iterable[str]) -> None:
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
        """Of one of this host's disks; else what is no number."""
        return disk.removeprefix(f"{self._prefix}-")


class _Given:
    """Disks that were named on this machine a moment ago, by whoever else does so; use in a ``with``."""

    def __init__(self, prefix: str) -> None:
        self._path = Path(tempfile.gettempdir()) / f"cotswold-names-{os.getuid()}-{prefix}"
        self._file = -1
        self._when: dict[str, float] = {}

    def __enter__(self) -> _Given:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        with suppress(MalformedError):
            found = parse_object(os.pread(self._file, _BYTES, 0))
            self._when = {name: when for name, when in found.items() if isinstance(when, float)}
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def disks(self) -> set[str]:
        now = time.time()
        return {name for name, when in self._when.items() if abs(now - when) < _GIVEN_SECONDS}

    def give(self, disks: Collection[str]) -> None:
        self._when = {name: when for name, when in self._when.items() if name in self.disks}
        self._when |= dict.fromkeys(disks, time.time())
        with suppress(OSError):  # a full disk: controllers know of them in a moment
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(self._when).encode(), 0)
