"""What a disk has of a bucket, and whose disk it is.

Knows: the fields, names of servers. Does not know: files, when anything is saved (`copy`), who revives what.

A server is called DISK, or DISK.NUMBER where it is the NUMBERth process after the first that has this disk.
What was restored from a backup is on a disk that no server of the cluster has had: in the place of one the
map has DISK.restored, of which no process is ever heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.wire import Change

_RESTORED = ".restored"
ASIDE = "-damaged-"
"""In the name of a disk that was moved aside, after the name that it had, and before the time."""


@dataclass(frozen=True)
class Saved:
    """A bucket as it is at ``index``; of its numbers, those of shards that are different since the last."""

    bucket: str
    life: int
    term: int
    """In which it was saved."""
    index: int
    change: Change
    """Everything but numbers, and but a frozen state."""
    vectors: tuple[str, ...]
    numbers: Mapping[tuple[str, int], object]
    """Buffers, by vector and shard."""
    members: tuple[str, ...] = ()
    """Servers of the newest group that the copy knew when it was saved; empty where that is not known."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """The greatest has lost the least."""
        return self.life, self.term, self.index


def disk_of(server: str) -> str:
    """The name of a server's disk."""
    server = server.removesuffix(_RESTORED)
    name, dot, number = server.rpartition(".")
    return name if dot and number.isdecimal() else server


def restored_on(disk: str) -> str:
    """Who has the parts of the parameters that were restored on a disk, until a server has it.

    >>> restored_on("server-a-0"), disk_of("server-a-0.restored"), is_restored("server-a-0.1")
    ('server-a-0.restored', 'server-a-0', False)
    """
    return disk + _RESTORED


def is_restored(server: str) -> bool:
    """Whether that is one of them, and no server."""
    return server.endswith(_RESTORED)


def next_of(server: str) -> str:
    """Who has the disk after a server."""
    disk = disk_of(server)
    number = server.removeprefix(disk).removeprefix(".")
    return f"{disk}.{int(number or 0) + 1}"
