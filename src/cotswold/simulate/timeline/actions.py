"""Actions of a rank during an update, as values: computation, messages, waiting.

Knows: the four kinds of action and their order on a rank. Does not know: devices, links, passing time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotswold.geometry import ExchangePlan


@dataclass(frozen=True)
class Compute:
    """The device computes for ``seconds`` if it is not shared. ``kind`` is the operation's name."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Post:
    """Messages of an exchange are sent: ``sends`` are (target, bytes), at most one per target."""

    exchange: str
    sends: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Wait:
    """The rank waits until messages from all ``sources`` and to all ``targets`` have arrived."""

    exchange: str
    sources: tuple[int, ...]
    targets: tuple[int, ...] = ()


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce of ``bytes``, in which every one of ``members`` waits for every other; () means all."""

    bytes: int
    members: tuple[int, ...] = ()


Action = Compute | Post | Wait | AllReduce
Program = tuple[Action, ...]
"""One rank's actions, in order."""


SHORT_SUM_RANKS = 8
"""The same limit as `RANKS_MAX` of ``cotswold.mesh.ranks.short_messages``."""


class Script:
    """The programs of all ranks while they are being recorded."""

    def __init__(self, ranks: int) -> None:
        self._actions: list[list[Action]] = [[] for _ in range(ranks)]
        self._number = 0

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(len(self._actions))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The recorded programs."""
        return tuple(map(tuple, self._actions))

    def add_work(self, kind: str, seconds: Sequence[float]) -> None:
        """Record that every rank computes for its number of seconds; 0 records nothing."""
        for actions, each in zip(self._actions, seconds, strict=True):
            if each > 0:
                actions.append(Compute(kind, each))

    def post(self, what: str, plan: ExchangePlan, point_bytes: int) -> PendingExchange:
        """Record that every rank sends its part of a plan; a point has ``point_bytes`` bytes."""
        self._number += 1
        name = f"{self._number}: {what}"
        for rank, actions in enumerate(self._actions):
            sends = tuple((each.target, each.box.size * point_bytes) for each in plan.sends(rank))
            if sends:
                actions.append(Post(name, sends))
        return PendingExchange(name, plan, point_bytes)

    def wait(self, pending: PendingExchange) -> None:
        """Record that every rank waits for its part of an exchange."""
        for rank, actions in enumerate(self._actions):
            sources = tuple(each.source for each in pending.plan.receives(rank))
            targets = tuple(each.target for each in pending.plan.sends(rank))
            if sources or targets:
                actions.append(Wait(pending.name, sources, targets))

    def all_reduce(self, bytes_: int) -> None:
        """Record an all-reduce of ``bytes_`` over all ranks; nothing for a single rank."""
        if len(self._actions) > 1:
            for actions in self._actions:
                actions.append(AllReduce(bytes_))

    def sum_short(self, bytes_: int) -> None:
        """Record a sum of a few numbers: up to 8 ranks send theirs to each other; more all-reduce them."""
        if len(self._actions) > SHORT_SUM_RANKS:
            self.all_reduce(bytes_)
            return
        self._number += 1
        name = f"{self._number}: short sum"
        for rank, actions in enumerate(self._actions):
            others = tuple(one for one in self.ranks if one != rank)
            if others:
                actions.append(Post(name, tuple((one, bytes_) for one in others)))
                actions.append(Wait(name, others, others))


@dataclass(frozen=True)
class PendingExchange:
    """An exchange in flight."""

    name: str
    plan: ExchangePlan
    point_bytes: int
