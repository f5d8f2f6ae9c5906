"""Messages between the coordinator and a server in whole-set training.

Knows: the fields. Does not know: the meaning of commands and buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import Close, Open, SumName


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
class Answer:
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
class Accept:
    """Accepted sums may be added now, and ended sessions will push nothing more."""

    evaluation: int
    start: int
    """Position of ``log[0]`` in the evaluation's log."""
    log: tuple[SumName, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    """Set shards of a vector (the initial parameters; a resume). Answered by `WriteAck`."""

    number: int
    name: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]


@dataclass(frozen=True)
class Written:
    """A server has executed a `Write`."""

    number: int
    server: str
    error: str | None = None
