"""What messages are made of besides plain values.

Knows: the fields. Does not know: who says what.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SumName:
    """A sum, for ever."""

    session: int
    number: int


@dataclass(frozen=True, order=True)
class Node:
    """An aligned run of portions: [index · 2**level, (index + 1) · 2**level)."""

    level: int
    index: int


@dataclass(frozen=True)
class Shard:
    """A range of the flat vector that one server has."""

    number: int
    server: str
    start: int
    stop: int
    tensor: str
    """The tensor that the range lies in."""
    block: int
    """Which block of rows of that tensor: with the tensor's name what routes it."""


@dataclass(frozen=True)
class PortionResult:
    """What one portion adds up to, but for the gradient."""

    portion: int
    samples: int
    value: float
    details: tuple[tuple[str, float], ...] = ()
    """Further sums, by name."""
    seconds: float = 0.0
    """What it took, on the worker's clock."""


@dataclass(frozen=True)
class Grant:
    """A portion to compute."""

    number: int
    """Counts the session's grants: one that was seen is not computed again."""
    portion: int
    apart: bool
    """Whether it must be a sum of its own, for another has it too."""


@dataclass(frozen=True)
class Held:
    """A portion that a worker has computed and that no shard counts yet."""

    grant: int
    result: PortionResult
    number: int
    """The sum that it is in."""
    flushed: bool
    """Whether that sum is complete and on its way to the servers."""


@dataclass(frozen=True)
class Plan:
    """Who sends which range to whom, when: a reduction, or the broadcast that mirrors it."""

    members: tuple[str, ...]
    """Names by rank; the first has the result of a reduction, or what is broadcast."""
    steps: tuple[tuple[int, ...], ...]
    """(stage, from, to, start, stop), ranks and a range of the flat vector; then, unless these are 1 and 0,
    whether it is added, and the number of the network."""


@dataclass(frozen=True)
class Fetch:
    """A vector that a worker needs."""

    name: str
    plan: Plan | None
    """The broadcast that brings it; None where it is pulled from the servers."""


@dataclass(frozen=True)
class Open:
    """An evaluation begins on the shards, after the round's commands."""

    evaluation: int
    at: str
    """The vector that workers pull."""
    gradient: bool
    """Whether sums will come."""
    tree: bool
    """Whether sums are nodes, added along the tree; otherwise in the order of the log."""


@dataclass(frozen=True)
class Close:
    """An evaluation ends on the shards, before the round's commands."""

    evaluation: int
    log: tuple[SumName, ...]
    """Every sum that counts, in the order of their acceptance; others are dropped."""
    scale: float
    """What the sum is multiplied by: one over the samples."""
    gradient: str | None
    """The vector that it becomes; None where it is thrown away."""
