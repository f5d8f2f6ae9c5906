"""Damage in a block store.

Knows: buckets and blocks by name. Does not know: files, the cause of damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.errors import StoreError
from cotswold.replication.disk.records import BlockKey, Bucket, Head

_MAX_NAMED = 3
RECOPY_REMEDY = "write these again from a copy on another server, and check the disk"
BEGIN_EMPTY = (
    "move it away, start with an empty one, and have its buckets copied from it or from other servers"
)
EMPTY_FOLDER_REMEDY = "move the folder away and start with an empty one"
"""Remedies for a damaged store of a server."""


@dataclass(frozen=True)
class Damage:
    """A damaged block, or a bucket's head if ``block`` is None."""

    bucket: str | None
    """None if damage to the index hides the heads of unknown buckets."""
    block: BlockKey | None
    reason: str

    def __str__(self) -> str:
        if self.bucket is None:
            return f"index of heads ({self.reason})"
        if self.block is None:
            return f"head of {self.bucket} ({self.reason})"
        return f"{self.bucket}, {self.block.vector}, shard {self.block.shard} ({self.reason})"


@dataclass(frozen=True)
class RebuiltIndex:
    """An index that was damaged and was rebuilt from all sound heads."""

    store: str
    reason: str
    damages: tuple[Damage, ...]
    """Heads missing from the new index."""
    bucket_count: int
    """Number of heads in the new index."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """Names of damaged buckets, as far as they are known."""
        return tuple(each.bucket for each in self.damages if each.bucket is not None)

    def __str__(self) -> str:
        damaged = f"{', '.join(self.buckets) or 'no bucket that can be named'} is damaged"
        old = (
            ", and others may be older than they were"
            if any(each.bucket is None for each in self.damages)
            else ""
        )
        return (
            f"the index of {self.store} was damaged ({self.reason:.300}), and was rebuilt with the heads of "
            f"{self.bucket_count} bucket{'' if self.bucket_count == 1 else 's'}; {damaged}{old}; check the "
            "disk"
        )


@dataclass
class DamagedError(StoreError):
    """Error: something in a store is damaged; has the damage and everything that is sound."""

    store: str
    damaged: tuple[Damage, ...]
    bucket: Bucket | None = None
    """Readable part of the bucket, from `BlockStore.read`; None if its head is damaged."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """Sound heads, from `BlockStore.heads`."""

    def __post_init__(self) -> None:
        named = "; ".join(map(str, self.damaged[:_MAX_NAMED]))
        more = len(self.damaged) - _MAX_NAMED
        cause = f"{self.store} is damaged: {named}{f' and {more} more' if more > 0 else ''}"
        super().__init__(cause, remedy=RECOPY_REMEDY)
