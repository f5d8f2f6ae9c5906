"""The data of a bucket on a disk, and the names of servers and their disks.

Knows: the fields, names of servers. Does not know: files, when a bucket is saved (`bucket_replica`),
recovery.

A server is named DISK, or DISK.NUMBER if it is the NUMBERth process after the first one with this disk. A
restored backup is on a disk that no server of the cluster has had. The bucket map names it DISK.restored, and
no process ever has that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.wire import BucketChange

_RESTORED = ".restored"
DAMAGED_SUFFIX = "-damaged-"
"""Suffix of the name of a disk that was moved aside; the time follows."""


@dataclass(frozen=True)
class SavedBucket:
    """A bucket as of ``index``; it has the numbers of the shards that changed since the last save."""

    bucket: str
    incarnation: int
    term: int
    """Term in which it was saved."""
    index: int
    change: BucketChange
    """Everything except numbers and a frozen state."""
    vectors: tuple[str, ...]
    numbers: Mapping[tuple[str, int], object]
    """Buffers, by vector and shard."""
    members: tuple[str, ...] = ()
    """Servers of the newest group that the replica knew when it was saved; empty if unknown."""

    @property
    def recency(self) -> tuple[int, int, int]:
        """Recency: the greatest value has lost the least."""
        return self.incarnation, self.term, self.index


def disk_of(server: str) -> str:
    """Return the name of a server's disk."""
    server = server.removesuffix(_RESTORED)
    name, dot, number = server.rpartition(".")
    return name if dot and number.isdecimal() else server


def restored_on(disk: str) -> str:
    """Return the name that stands for a restored disk until a server has it.

    >>> restored_on("server-a-0"), disk_of("server-a-0.restored"), is_restored("server-a-0.1")
    ('server-a-0.restored', 'server-a-0', False)
    """
    return disk + _RESTORED


def is_restored(server: str) -> bool:
    """True if the name stands for a restored disk."""
    return server.endswith(_RESTORED)


def next_server_name(server: str) -> str:
    """Return the name of the next server with the same disk."""
    disk = disk_of(server)
    number = server.removeprefix(disk).removeprefix(".")
    return f"{disk}.{int(number or 0) + 1}"
