"""How old the weights were that an update was computed from, and what is done with one that is too stale.

Knows: versions, bounds. Does not know: updates, shards, messages.

The *staleness* of an update is, for each shard, how many updates the shard has had since the version that it
was computed from.

    policy   an update of staleness s above the bound b
    none     is applied as it is
    scale    is applied b / s times (Zhang et al. 2016, staleness-aware SGD, where b is 1)
    drop     is not applied; it is counted
    wait     is not made: an update that would make what another replica computes too stale waits for it

Staleness only grows with time, so an update that is too stale cannot be mended by waiting. With *wait*, what
waits is what would age others: a replica that has pulled, and has not pushed since, holds back the updates of
faster ones once b updates came since its pull; of those that may be applied, the oldest are first. So when an
update comes, its staleness is at most b; those of other replicas that are older go before it, one of each.

That cannot deadlock. A replica is waited for by others only where it pulls for its next push, and all its
pushes before are answered, but for the marker of a checkpoint: so it computes, and waits for none (a pull
made while a push waits names no push, and holds nobody back). It still holds others back when it has sent a
marker; it stops when it pushes (an update without shards will do) and when its session ends. And when the
queue has no room for another update, all that waits is applied, however stale others become: memory goes
before staleness.

So do checkpoints. What waits behind a marker waits for the markers of all others, who send them once their
pushes are answered: it makes nobody wait, whether it has found room or not, and may become staler than b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Policy = Literal["none", "scale", "drop", "wait"]


@dataclass(frozen=True)
class Staleness:
    """A bound, and what happens beyond it."""

    policy: Policy = "none"
    bound: int = 0
    """The greatest staleness that nothing is done about; of no meaning for ``none``."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"staleness {self.policy!r}; there are {', '.join(get_args(Policy))}")
        least = 1 if self.policy == "scale" else 0
        if self.bound < least:
            raise ValueError(f"a staleness of {self.bound} at most; it must be at least {least}")

    def scale(self, staleness: int) -> float:
        """What an update of such staleness is multiplied by; 0 where it is dropped."""
        if staleness <= self.bound or self.policy in ("none", "wait"):
            return 1.0
        return 0.0 if self.policy == "drop" else self.bound / staleness


@dataclass
class Histogram:
    """The staleness of all updates of a shard."""

    updates: int = 0
    total: int = 0
    largest: int = 0
    bins: list[int] = field(default_factory=list)
    """How many there were of staleness 0, 1, 2 to 3, 4 to 7, and so on: 64 bins at most."""

    def add(self, staleness: int, times: int = 1) -> None:
        """So many updates of a staleness were applied."""
        place = min(staleness.bit_length(), 63)
        if place >= len(self.bins):
            self.bins += [0] * (place + 1 - len(self.bins))
        self.bins[place] += times
        self.updates, self.total = self.updates + times, self.total + times * staleness
        if staleness > self.largest:
            self.largest = staleness

    @property
    def mean(self) -> float:
        """0 where there was no update."""
        return self.total / max(self.updates, 1)

    def __add__(self, other: Histogram) -> Histogram:
        bins = [0] * max(len(self.bins), len(other.bins))
        for one in (self, other):
            for place, count in enumerate(one.bins):
                bins[place] += count
        return Histogram(
            self.updates + other.updates, self.total + other.total, max(self.largest, other.largest), bins
        )
