"""What is damaged in a block store.

Knows: buckets and blocks by name. Does not know: files, why they are damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cotswold.errors import StoreError

if TYPE_CHECKING:
    from cotswold.replication.disk.records import BlockKey, Bucket, Head

_NAMED_MOST = 3
COPY_AGAIN = "write these again from a copy on another server, and check the disk"
BEGIN_EMPTY = (
    "move it away, start with an empty one, and have its buckets copied from it or from other servers"
)
BEGIN_WITHOUT_FORMAT = "move the folder away and start with an empty one"
REMEDIES = (COPY_AGAIN, BEGIN_EMPTY, BEGIN_WITHOUT_FORMAT)
"""What is to be done about a damaged store of a server, as sentences end."""


class RecordError(ValueError):
    """A record that is not what was written under its key; says what is wrong with it."""


@dataclass(frozen=True)
class Damage:
    """One damaged thing: a block, or a bucket's head where ``block`` is None."""

    bucket: str | None
    """None where the store's index is damaged in a place that held heads of unknown buckets."""
    block: BlockKey | None
    why: str

    def __str__(self) -> str:
        if self.bucket is None:
            return f"index of heads ({self.why})"
        if self.block is None:
            return f"head of {self.bucket} ({self.why})"
        return f"{self.bucket}, {self.block.vector}, shard {self.block.shard} ({self.why})"


@dataclass(frozen=True)
class Renewed:
    """A store whose index was damaged, and was begun anew with all heads that were sound."""

    store: str
    why: str
    lost: tuple[Damage, ...]
    """Heads that are not in it."""
    kept: int
    """Heads that are."""

    @property
    def buckets(self) -> tuple[str, ...]:
        """Those that are damaged, as far as their names are known."""
        return tuple(each.bucket for each in self.lost if each.bucket is not None)

    def __str__(self) -> str:
        damaged = f"{', '.join(self.buckets) or 'no bucket that can be named'} is damaged"
        old = (
            ", and others may be older than they were"
            if any(each.bucket is None for each in self.lost)
            else ""
        )
        return (
            f"the index of {self.store} was damaged ({self.why:.300}), and is begun anew with the heads of "
            f"{self.kept} bucket{'' if self.kept == 1 else 's'}; {damaged}{old}; check the disk"
        )


@dataclass
class DamagedError(StoreError):
    """Something in a store is damaged; carries what, and all that is sound."""

    store: str
    damaged: tuple[Damage, ...]
    bucket: Bucket | None = None
    """What could be read of the bucket, from `BlockStore.read`; None where its head is damaged."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """The sound ones, from `BlockStore.heads`."""

    def __post_init__(self) -> None:
        super().__init__(str(self))

    def __str__(self) -> str:
        named = "; ".join(map(str, self.damaged[:_NAMED_MOST]))
        more = len(self.damaged) - _NAMED_MOST
        return f"{self.store} is damaged: {named}{f' and {more} more' if more > 0 else ''}; {COPY_AGAIN}"
