"""An update that comes in parts, each from a rank of the replica that has some of its shards.

Knows: the parts of a session's next update. Does not know: sessions, numbers of updates, the queue.

    a part of the next update of its session               what happens
    names other parts or other fields than those before    refused
    of a rank that it does not name                        refused
    has a shard that another part has                      refused
    is here already                                        nothing
    is missing                                             it is kept
    was the last that is missing                           the update is whole

A part is read and checked by itself when it comes. What is kept has the size of one update of each session
of several ranks, at most; it is forgotten with the session, and then no shard here has any of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Generic

from cotswold.paramserver.core.admission import Factors, RefusedError
from cotswold.shards.core.shard_server import Values
from cotswold.wire import Update

_Read = list[Values | Factors[Values]]


class Parts(Generic[Values]):
    """Those of one session's next update that have come."""

    def __init__(self) -> None:
        self._came: dict[int, tuple[Update, _Read[Values]]] = {}
        """By rank; without buffers."""

    def __len__(self) -> int:
        return len(self._came)

    def lacks(self, update: Update) -> bool:
        """Whether this part is to be read and put; raises RefusedError for one that fits with no others."""
        if update.part not in update.parts or not update.shards:
            raise RefusedError("parts", f"part {update.part} of parts {list(update.parts)} is none")
        if update.kind == "factors":
            raise RefusedError("parts", "factors do not come in parts")
        if update.part in self._came:
            return False
        for other, _ in self._came.values():
            if _head(other) != _head(update):
                raise RefusedError("parts", f"parts {other.part} and {update.part} are of different updates")
            if not set(other.shards).isdisjoint(update.shards):
                raise RefusedError("parts", f"parts {other.part} and {update.part} have the same shards")
        return True

    def put(self, update: Update, values: _Read[Values]) -> None:
        """A part has come, and is kept."""
        self._came[update.part] = replace(update, buffers=()), values

    def whole(self) -> tuple[Update, _Read[Values]] | None:
        """The update, without buffers, and what was read of it, once nothing is missing."""
        if not self._came:
            return None
        first = next(iter(self._came.values()))[0]
        if len(self._came) < len(set(first.parts)):
            return None
        came = [self._came[rank] for rank in sorted(self._came)]
        update = replace(
            first,
            shards=tuple(number for each, _ in came for number in each.shards),
            versions=tuple(version for each, _ in came for version in each.versions),
            part=0,
            parts=(),
        )
        return update, [value for _, values in came for value in values]

    def clear(self) -> None:
        """Forget what has come."""
        self._came = {}


def _head(update: Update) -> Update:
    """What all parts have alike."""
    return replace(update, shards=(), versions=(), buffers=(), part=0)
