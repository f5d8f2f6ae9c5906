"""Types of message fields other than plain values.

Knows: the fields. Does not know: senders and receivers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SumName:
    """Permanent name of a sum."""

    session: int
    number: int


@dataclass(frozen=True, order=True)
class Node:
    """An aligned range of portions: [index · 2**level, (index + 1) · 2**level)."""

    level: int
    index: int


@dataclass(frozen=True)
class Shard:
    """A range of the flat vector that one server holds."""

    number: int
    server: str
    start: int
    stop: int
    tensor: str
    """Name of the tensor that contains the range."""
    block: int
    """Number of the block of rows in the tensor. Tensor and block together route the shard."""


@dataclass(frozen=True)
class PortionResult:
    """The sums of one portion, without the gradient."""

    portion: int
    samples: int
    value: float
    details: tuple[tuple[str, float], ...] = ()
    """Further sums, by name."""
    seconds: float = 0.0
    """Duration of the computation on the worker's clock."""


@dataclass(frozen=True)
class Grant:
    """A portion to compute."""

    number: int
    """Number of the grant in its session; a grant that was seen before is not computed again."""
    portion: int
    is_isolated: bool
    """True if the portion must be a separate sum, because another worker computes it too."""


@dataclass(frozen=True)
class ComputedPortion:
    """A portion that a worker has computed and that no shard counts yet."""

    grant: int
    result: PortionResult
    number: int
    """Number of the sum that includes the portion."""
    flushed: bool
    """True if that sum is complete and on its way to the servers."""


@dataclass(frozen=True)
class ReductionSchedule:
    """Schedule of a reduction, or of the broadcast that mirrors it: ranges, senders, receivers and stages."""

    members: tuple[str, ...]
    """Names by rank. The first member gets the result of a reduction, or is the source of a broadcast."""
    steps: tuple[tuple[int, ...], ...]
    """(stage, from, to, start, stop): ranks and a range of the flat vector. Two more numbers follow unless
    they are 1 and 0: whether the range is added, and the number of the network."""


@dataclass(frozen=True)
class Fetch:
    """A vector that a worker needs."""

    name: str
    plan: ReductionSchedule | None
    """The broadcast that delivers the vector; None if the worker pulls it from the servers."""


@dataclass(frozen=True)
class Open:
    """Start an evaluation on the shards, after the round's commands."""

    evaluation: int
    at: str
    """Vector that workers pull."""
    gradient: bool
    """True if sums will be pushed."""
    tree: bool
    """True if sums are nodes and are added along the tree; otherwise they are added in the order of the
    log."""


@dataclass(frozen=True)
class Close:
    """End an evaluation on the shards, before the round's commands."""

    evaluation: int
    log: tuple[SumName, ...]
    """All accepted sums, in the order of acceptance; others are dropped."""
    scale: float
    """Factor of the sum: one over the number of samples."""
    gradient: str | None
    """Vector that receives the scaled sum; None if the sum is discarded."""
