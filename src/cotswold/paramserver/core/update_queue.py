"""Updates that a server has taken and not applied: how many bytes they may be, which of them are next.

Knows: how many numbers each keeps of each shard, behind which checkpoint it is. Does not know: sessions, what
an update says, when it is applied.

    an update                                          room for it
    all that waits and it are within both bounds       there is
    finds nothing waiting for its shards, or at all    there is, whatever its size
    is behind the marker of a checkpoint               within half of both: it keeps nobody's marker back
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from cotswold.paramserver.core.admission import Factors
from cotswold.paramserver.core.settings import Room
from cotswold.shards.core.shard_server import Values
from cotswold.wire import Update


@dataclass(eq=False)
class Waiting(Generic[Values]):
    """One update."""

    session: int
    update: Update
    rate: float
    values: list[Values | Factors[Values]]
    numbers: dict[int, int]
    """How many are kept meanwhile, by shard."""
    checkpoint: int
    """It is in later ones alone."""
    is_dropped: bool = False


class Queue(Generic[Values]):
    """Those of a server, in the order in which they came."""

    def __init__(self, shards: Iterable[int], room: Room, item_bytes: int) -> None:
        """A number has ``item_bytes``."""
        self.is_crowded = False
        """Whether somebody found no room since this was last taken back."""
        self._room, self._item_bytes = room, item_bytes
        self._waiting: list[Waiting[Values]] = []
        self._bytes: dict[int, int] = dict.fromkeys(shards, 0)
        """By shard."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting[Values]]:
        return iter(self._waiting)

    @property
    def bytes(self) -> int:
        """All that wait."""
        return sum(self._bytes.values())

    def ahead_of(self, checkpoint: int) -> list[Waiting[Values]]:
        """Those that are not behind the marker of a later checkpoint than this."""
        return [each for each in self._waiting if each.checkpoint <= checkpoint]

    def add(self, waiting: Waiting[Values]) -> None:
        """One has come."""
        self._waiting.append(waiting)
        self._count(waiting, 1)

    def remove(self, some: Iterable[Waiting[Values]]) -> None:
        """These wait no more."""
        gone = set(some)
        self._waiting = [each for each in self._waiting if each not in gone]
        for each in gone:
            self._count(each, -1)

    def has_room(self, numbers: Mapping[int, int], frozen: int, *, is_behind: bool) -> bool:
        """Whether an update that keeps so many numbers of each shard may come.

        ``frozen``: the newest checkpoint that is; ``is_behind``: whether it is in later ones alone.
        """
        share = 2 if is_behind else 1
        others = self._waiting if is_behind else self.ahead_of(frozen)
        more = {number: count * self._item_bytes for number, count in numbers.items()}
        most = self._room.shard_bytes // share
        tight = [number for number, bytes_ in more.items() if self._bytes[number] + bytes_ > most]
        full = tight and (is_behind or any(number in each.numbers for each in others for number in tight))
        all_most = self._room.all_bytes // share
        if full or ((others or is_behind) and self.bytes + sum(more.values()) > all_most):
            self.is_crowded = self.is_crowded or not is_behind
            return False
        return True

    def _count(self, waiting: Waiting[Values], sign: int) -> None:
        for number, count in waiting.numbers.items():
            self._bytes[number] += sign * count * self._item_bytes
            assert self._bytes[number] >= 0, f"shard {number} has less than nothing waiting"
