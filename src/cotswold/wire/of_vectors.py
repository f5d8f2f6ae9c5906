"""Messages that carry vectors and sums between a server and a worker or the coordinator.

Knows: the fields. Does not know: the meaning of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.types import Node


@dataclass(frozen=True)
class Pull:
    """Request shards of a vector; answered by `Pulled` once the evaluation is open."""

    session: int
    """Session of the worker; 0 for the coordinator."""
    evaluation: int
    """Number of the evaluation; 0 for the current value of the vector."""
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
    """One buffer per shard."""
    error: str | None = None


@dataclass(frozen=True)
class Push:
    """The shards of a sum that belong to one server."""

    session: int
    evaluation: int
    number: int
    node: Node | None
    """Node of the tree over portions, if sums are nodes."""
    portions: tuple[int, ...]
    shards: tuple[int, ...]
    buffers: tuple[object, ...]
    """One buffer per shard."""


@dataclass(frozen=True)
class Kept:
    """A server keeps the sum until the coordinator accepts it or closes the evaluation."""

    session: int
    evaluation: int
    number: int
    server: str


@dataclass(frozen=True)
class Refused:
    """A server rejects the sum."""

    session: int
    evaluation: int
    number: int
    server: str
    reason: str
