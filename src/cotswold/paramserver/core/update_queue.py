"""Updates that a server has accepted and not applied: their size in bytes, and the order of their
application.

Knows: the numbers kept for each shard, the checkpoint that an update is behind. Does not know: sessions, the
contents of updates, when they are applied.

    an update                                          is accepted
    fits with the queue within both limits             yes
    finds its shards' queue, or the whole queue, empty yes, at any size
    is behind the marker of a checkpoint               within half of both limits: it blocks no marker
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from cotswold.paramserver.core.settings import QueueLimits
from cotswold.shards.core.admission import ReceivedFactors
from cotswold.shards.core.shard_server import Values
from cotswold.wire import Update


@dataclass(eq=False)
class QueuedUpdate(Generic[Values]):
    """One queued update."""

    session: int
    update: Update
    rate: float
    values: list[Values | ReceivedFactors[Values]]
    numbers: dict[int, int]
    """Numbers kept for each shard."""
    checkpoint: int
    """Only later checkpoints include it."""
    is_dropped: bool = False


class UpdateQueue(Generic[Values]):
    """Queued updates of a server, in order of arrival."""

    def __init__(self, shards: Iterable[int], room: QueueLimits, item_bytes: int) -> None:
        """``item_bytes``: bytes per number."""
        self.is_crowded = False
        """True if an update found the queue full since this was last reset."""
        self._room, self._item_bytes = room, item_bytes
        self._updates: list[QueuedUpdate[Values]] = []
        self._bytes: dict[int, int] = dict.fromkeys(shards, 0)
        """Queued bytes by shard."""

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[QueuedUpdate[Values]]:
        return iter(self._updates)

    @property
    def bytes(self) -> int:
        """Bytes of all queued updates."""
        return sum(self._bytes.values())

    def before_checkpoint(self, checkpoint: int) -> list[QueuedUpdate[Values]]:
        """Return the updates that are not behind the marker of a later checkpoint."""
        return [each for each in self._updates if each.checkpoint <= checkpoint]

    def add(self, update: QueuedUpdate[Values]) -> None:
        """Append an update."""
        self._updates.append(update)
        self._count(update, 1)

    def remove(self, some: Iterable[QueuedUpdate[Values]]) -> None:
        """Remove these updates."""
        gone = set(some)
        self._updates = [each for each in self._updates if each not in gone]
        for each in gone:
            self._count(each, -1)

    def has_room(self, numbers: Mapping[int, int], frozen: int, *, is_behind: bool) -> bool:
        """True if the queue accepts an update that keeps these numbers of each shard.

        ``frozen``: the newest frozen checkpoint. ``is_behind``: True if only later checkpoints include the
        update.
        """
        share = 2 if is_behind else 1
        others = self._updates if is_behind else self.before_checkpoint(frozen)
        more = {number: count * self._item_bytes for number, count in numbers.items()}
        most = self._room.shard_bytes // share
        tight = [number for number, bytes_ in more.items() if self._bytes[number] + bytes_ > most]
        full = tight and (is_behind or any(number in each.numbers for each in others for number in tight))
        all_most = self._room.all_bytes // share
        if full or ((others or is_behind) and self.bytes + sum(more.values()) > all_most):
            self.is_crowded = self.is_crowded or not is_behind
            return False
        return True

    def _count(self, update: QueuedUpdate[Values], sign: int) -> None:
        for number, count in update.numbers.items():
            self._bytes[number] += sign * count * self._item_bytes
            assert self._bytes[number] >= 0, f"shard {number} has a negative number of queued bytes"
