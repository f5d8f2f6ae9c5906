"""Staleness of updates, and policies for updates that exceed a bound.

Knows: versions, bounds. Does not know: updates, shards, messages.

The *staleness* of an update is, for each shard, the number of updates that the shard has had since the
version from which the update was computed.

    policy   an update of staleness s above the bound b
    none     is applied unchanged
    scale    is scaled by b / s (Zhang et al. 2016, staleness-aware SGD, with b = 1)
    drop     is not applied, but counted
    wait     does not occur: an update that would make another replica's computation too stale waits for it

Staleness only grows with time, so waiting does not help an update that is already too stale. With *wait*, the
queue holds updates that would make others too stale. A replica that has pulled and not pushed since holds
back the updates of faster replicas, once b updates have arrived since its pull. Of the updates that may be
applied, the oldest are applied first. So the staleness of an arriving update is at most b; older updates of
other replicas, one of each, are applied before it.

This cannot deadlock. Others wait for a replica only if it pulled for its next push and all its earlier pushes
are answered, markers aside: so it computes and waits for none. (A pull made while a push is queued names no
push and holds no update back.) A replica that has sent a marker still holds others back. This ends when it
pushes, even without shards, and when its session ends. If the queue has no room for another update, all
queued updates are applied, however stale others become: the memory limit has priority over staleness.

Checkpoints have priority too. An update behind a marker waits for the markers of all other replicas, which
send them once their pushes are answered. Such an update holds no replica back, even if the queue was full,
and may exceed b.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Policy = Literal["none", "scale", "drop", "wait"]


@dataclass(frozen=True)
class Staleness:
    """A staleness bound and the policy for updates beyond it."""

    policy: Policy = "none"
    bound: int = 0
    """Greatest staleness without an action; ignored for ``none``."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(
                f"unknown staleness policy {self.policy!r}; use one of {', '.join(get_args(Policy))}"
            )
        least = 1 if self.policy == "scale" else 0
        if self.bound < least:
            raise ValueError(f"the staleness bound must be at least {least}, got {self.bound}")

    def scale(self, staleness: int) -> float:
        """Return the factor of an update of this staleness; 0 if it is dropped."""
        if staleness <= self.bound or self.policy in ("none", "wait"):
            return 1.0
        return 0.0 if self.policy == "drop" else self.bound / staleness


@dataclass
class StalenessHistogram:
    """Staleness of all updates of a shard."""

    updates: int = 0
    total: int = 0
    largest: int = 0
    bins: list[int] = field(default_factory=list)
    """Number of updates of staleness 0, 1, 2 to 3, 4 to 7, and so on; at most 64 bins."""

    def add(self, staleness: int, times: int = 1) -> None:
        """Count ``times`` updates of a staleness."""
        place = min(staleness.bit_length(), 63)
        if place >= len(self.bins):
            self.bins += [0] * (place + 1 - len(self.bins))
        self.bins[place] += times
        self.updates, self.total = self.updates + times, self.total + times * staleness
        if staleness > self.largest:
            self.largest = staleness

    @property
    def mean(self) -> float:
        """Mean staleness; 0 without updates."""
        return self.total / max(self.updates, 1)

    def __add__(self, other: StalenessHistogram) -> StalenessHistogram:
        bins = [0] * max(len(self.bins), len(other.bins))
        for one in (self, other):
            for place, count in enumerate(one.bins):
                bins[place] += count
        return StalenessHistogram(
            self.updates + other.updates, self.total + other.total, max(self.largest, other.largest), bins
        )
