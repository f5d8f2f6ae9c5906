"""Vectors and sums between a worker, or whoever needs one, and a server.

Knows: the fields. Does not know: what a buffer holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.types import Node


@dataclass(frozen=True)
class Pull:
    """A vector's shards are wanted; answered by `Pulled` once the evaluation is open."""

    session: int
    """Of a worker; 0 for the coordinator."""
    evaluation: int
    """0 for a vector as it is now."""
    name: str
    shards: tuple[int, ...]


@dataclass(frozen=True)
class Pulled:
    """Shards of a vector."""

    session: int
    evaluation: int
    name: str
    server: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]
    """One a shard."""
    error: str | None = None


@dataclass(frozen=True)
class Push:
    """A sum's shards on one server."""

    session: int
    evaluation: int
    number: int
    node: Node | None
    """Where sums are nodes."""
    portions: tuple[int, ...]
    shards: tuple[int, ...]
    buffers: tuple[object, ...]
    """One a shard."""


@dataclass(frozen=True)
class Kept:
    """A server keeps the sum, until the coordinator accepts it or closes the evaluation."""

    session: int
    evaluation: int
    number: int
    server: str


@dataclass(frozen=True)
class Refused:
    """A server will not keep the sum."""

    session: int
    evaluation: int
    number: int
    server: str
    reason: str
