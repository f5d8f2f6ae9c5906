"""An update that arrives in parts, one from each rank of the replica that has some of its shards.

Knows: the parts of a session's next update. Does not know: sessions, numbers of updates, the queue.

    a part of the session's next update                    action
    names other ranks or other fields than the earlier     reject
    from a rank that it does not name                      reject
    has a shard of another part                            reject
    is a duplicate                                         ignore
    is new                                                 keep
    is the last missing part                               the update is complete

Each part is read and checked when it arrives. Kept parts are at most one update for each session with several
ranks. They are dropped with the session; then no shard of this server has any of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

from cotswold.shards.core.admission import ReceivedFactors, UpdateRejectedError
from cotswold.shards.core.shard_server import Values
from cotswold.wire import Update

_Read = list[Values | ReceivedFactors[Values]]


class PartialUpdate(Generic[Values]):
    """Received parts of a session's next update."""

    def __init__(self) -> None:
        self._received: dict[int, tuple[Update, _Read[Values]]] = {}
        """Parts by rank, without buffers."""

    def __len__(self) -> int:
        return len(self._received)

    def lacks(self, update: Update) -> bool:
        """True if this part is new; raise UpdateRejectedError if it does not fit the others."""
        if update.rank not in update.ranks or not update.shards:
            raise UpdateRejectedError(
                "parts", f"part {update.rank} is not among the parts {list(update.ranks)}, or has no shards"
            )
        if update.kind == "factors":
            raise UpdateRejectedError("parts", "factors cannot be pushed in parts")
        if update.rank in self._received:
            return False
        for other, _ in self._received.values():
            if _head(other) != _head(update):
                raise UpdateRejectedError(
                    "parts", f"parts {other.rank} and {update.rank} belong to different updates"
                )
            if not set(other.shards).isdisjoint(update.shards):
                raise UpdateRejectedError(
                    "parts", f"parts {other.rank} and {update.rank} have the same shards"
                )
        return True

    def add(self, update: Update, values: _Read[Values]) -> None:
        """Keep a new part."""
        self._received[update.rank] = replace(update, buffers=()), values

    def whole(self) -> tuple[Update, _Read[Values]] | None:
        """Return the update without buffers, and its values, once no part is missing."""
        if not self._received:
            return None
        first = next(iter(self._received.values()))[0]
        if len(self._received) < len(set(first.ranks)):
            return None
        came = [self._received[rank] for rank in sorted(self._received)]
        update = replace(
            first,
            shards=tuple(number for each, _ in came for number in each.shards),
            versions=tuple(version for each, _ in came for version in each.versions),
            rank=0,
            ranks=(),
        )
        return update, [value for _, values in came for value in values]

    def clear(self) -> None:
        """Drop all parts."""
        self._received = {}


def _head(update: Update) -> Update:
    """Return the fields that all parts share."""
    return replace(update, shards=(), versions=(), buffers=(), rank=0)
