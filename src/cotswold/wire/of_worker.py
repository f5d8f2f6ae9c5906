"""What a worker says to the coordinator.

Knows: the fields. Does not know: what is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.wire.types import Held, PortionResult


@dataclass(frozen=True)
class Join:
    """A worker is there and has made its work; it waits for `Welcome`."""

    name: str
    """Of the process, never used again by another."""
    attempt: int
    """Counts its joins; a higher one ends the session of the lower."""
    address: str
    """Where its peers and the coordinator reach it."""
    patterns: int
    """How many its work has: all must agree."""
    size: int
    """The length of its parameters: all must agree."""


@dataclass(frozen=True)
class Beat:
    """A worker lives, and has this in hand: what was lost on the way is seen from it and sent again."""

    session: int
    evaluation: int
    """The newest that it has heard of; 0 for none."""
    attempt: int
    """The newest attempt of its `Begin` or `Reduce`."""
    is_ready: bool
    """Whether it has the point."""
    is_flushed: bool
    """Whether it has heard `Flush`."""
    granted: tuple[int, ...]
    """Grants that wait or are being computed."""
    held: tuple[Held, ...]
    """What it has computed, without what it knows was `Heard`."""
    heard: tuple[tuple[int, int], ...]
    """Grants that it has computed and that were heard, but are not settled: (first, last) of each run."""


@dataclass(frozen=True)
class Ready:
    """It has the point of the evaluation, and computes what it is granted."""

    session: int
    evaluation: int
    attempt: int
    digests: tuple[int, ...]
    """Of the point, a shard; empty where none were asked for."""


@dataclass(frozen=True)
class Computed:
    """Portions are computed, and there is room for more."""

    session: int
    evaluation: int
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Failed:
    """A portion cannot be computed; the worker goes on with others."""

    session: int
    evaluation: int
    grant: int
    portion: int
    error: str
    """One sentence."""


@dataclass(frozen=True)
class Pushed:
    """All servers hold a sum."""

    session: int
    evaluation: int
    number: int
    results: tuple[PortionResult, ...]
    """Its portions; empty for a reduction, whose portions the coordinator knows."""
    attempt: int = 0
    """Of the reduction that made it; 0 for a sum of its own."""


@dataclass(frozen=True)
class Aborted:
    """A broadcast or a reduction broke off."""

    session: int
    evaluation: int
    attempt: int
    lost: str
    """The member that could not be reached, or empty."""


@dataclass(frozen=True)
class Leave:
    """It wants to go (a spot notice, a wish of its user): what it holds is settled first, then `Dismiss`."""

    session: int
    reason: str


@dataclass(frozen=True)
class HeldSum:
    """What a portion of held-out patterns adds up to."""

    value: float
    samples: int
    details: Mapping[str, float]


@dataclass(frozen=True)
class Validated:
    """The sums of a run of held-out patterns, a portion each."""

    session: int
    number: int
    run: int
    sums: tuple[HeldSum, ...]
    error: str | None = None
