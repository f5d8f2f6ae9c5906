"""What a server must not forget of its shards: versions, sessions, the newest order, what is frozen.

Knows: these, and which of them are different since they were looked at last. Does not know: the numbers in
shards, the queue, who has copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from cotswold.paramserver.core.frozen_state import Frozen
from cotswold.paramserver.core.sessions import Sessions
from cotswold.shards.core.shard_server import Values
from cotswold.shards.core.versions import later
from cotswold.wire import Order, Ranges

_WHOEVER = 1 << 62
"""Above the number of any session."""


@dataclass
class Changed:
    """What is different since it was looked at last."""

    shards: set[int] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)
    order: bool = False
    frozen: bool = False

    def __bool__(self) -> bool:
        return bool(self.shards or self.sessions or self.order or self.frozen)


class Books(Generic[Values]):
    """Those of some shards."""

    def __init__(self, run: str, versions: Mapping[int, int]) -> None:
        self.versions = dict(versions)
        """How many updates each shard has had."""
        self.sessions = Sessions(run)
        self.order = Order(0, (), (), 0, 0)
        self.rates: dict[int, float] = {}
        """Of the order, by version."""
        self.frozen: Frozen[Values] | None = None
        """The state at the newest checkpoint, until the coordinator has taken it."""
        self.checkpoint = 0
        """The newest that is frozen."""
        self.void = 0
        """Sessions to this number were of a life that is over, and push no more."""
        self.restored = 0
        """The newest order that the disk knew with which this life began."""
        self.life = 0
        """Which life of the shards this is; the primary alone knows it."""
        self._changed = Changed()

    @property
    def changed(self) -> bool:
        """Whether anything is different since `take_changed`."""
        return bool(self._changed or self.sessions.changed)

    def take_changed(self) -> Changed:
        """What is different since this was called last."""
        changed, self._changed = self._changed, Changed()
        changed.sessions = self.sessions.take_changed()
        return changed

    def wrote(self, shards: Iterable[int]) -> None:
        """The numbers of shards are others, and no update made them so."""
        self._changed.shards.update(shards)

    def applied(self, shard: int) -> None:
        """A shard has had one update more."""
        self.versions[shard] += 1
        self._changed.shards.add(shard)

    def revived(self, lives: int) -> None:
        """All this is what a disk has, and begins another life, so many later."""
        self.versions = {number: later(version, lives) for number, version in self.versions.items()}
        self.void, self.restored, self._changed.order = _WHOEVER, self.order.number, True

    def void_all(self, named: Iterable[int]) -> None:
        """The coordinator knew these sessions before it heard of another life: none of them pushes on."""
        if self.void == _WHOEVER:
            self.void, self._changed.order = max([self.sessions.newest, *named]), True

    def obey(self, order: Order) -> None:
        """The newest order is this."""
        self.order, self.rates = order, dict(order.rates)
        self._changed.order = True
        if self.frozen is not None and self.frozen.checkpoint <= order.taken:
            self.frozen = None
            self._changed.frozen = True

    def known_at(self, checkpoint: int) -> Ranges:
        """Places that the coordinator knew when a checkpoint began; nothing if that is another one."""
        return self.order.cut if self.order.checkpoint == checkpoint else ()

    def freeze(self, frozen: Frozen[Values]) -> None:
        """All markers of a checkpoint are in, and this is its state."""
        self.frozen, self.checkpoint = frozen, frozen.checkpoint
        self._changed.frozen = True
