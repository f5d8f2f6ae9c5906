"""Messages that carry commands, vectors and sums between a server and a worker or the coordinator.

Knows: the fields. Does not know: the meaning of commands and buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import Close, Node, Open, SumName


@dataclass(frozen=True)
class Round:
    """Close an evaluation, run commands, open an evaluation, in this order. A repeated round is executed
    once."""

    number: int
    """Sequence number; grows by one."""
    close: Close | None
    commands: tuple[Command, ...]
    open: Open | None
    digest: str | None
    """Vector whose digests to return after everything else, or None."""


@dataclass(frozen=True)
class RoundReply:
    """A server has executed a round."""

    number: int
    server: str
    shards: tuple[int, ...]
    """The server's shards, in its order."""
    dots: tuple[tuple[float, ...], ...]
    """One row per shard: one partial sum per dot product."""
    digests: tuple[int, ...]
    """One digest per shard, or none."""
    error: str | None = None
    """The failure, or None. The commands after the failed one were not executed."""


@dataclass(frozen=True)
class AcceptSums:
    """Accepted sums may be added now, and ended sessions will push nothing more."""

    evaluation: int
    start: int
    """Position of ``log[0]`` in the evaluation's log."""
    log: tuple[SumName, ...]
    ended_sessions: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    """Set shards of a vector (the initial parameters; a resume). Answered by `WriteAck`."""

    number: int
    name: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]


@dataclass(frozen=True)
class WriteAck:
    """A server has executed a `Write`."""

    number: int
    server: str
    error: str | None = None


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
class PushAck:
    """A server keeps the sum until the coordinator accepts it or closes the evaluation."""

    session: int
    evaluation: int
    number: int
    server: str


@dataclass(frozen=True)
class PushRejected:
    """A server rejects the sum."""

    session: int
    evaluation: int
    number: int
    server: str
    reason: str
