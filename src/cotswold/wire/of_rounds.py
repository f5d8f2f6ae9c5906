"""What the coordinator and a server say to each other.

Knows: the fields. Does not know: what is commanded, what a buffer holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import Close, Open, SumName


@dataclass(frozen=True)
class Round:
    """In this order: close an evaluation, run commands, open one. Done once, however often it comes."""

    number: int
    """Grows by one."""
    close: Close | None
    commands: tuple[Command, ...]
    open: Open | None
    digest: str | None
    """A vector whose digests are wanted, after all this."""


@dataclass(frozen=True)
class Answer:
    """A server has done a round."""

    number: int
    server: str
    shards: tuple[int, ...]
    """Its shards, in their order."""
    dots: tuple[tuple[float, ...], ...]
    """A row a shard: one partial sum a dot."""
    digests: tuple[int, ...]
    """One a shard, or none."""
    error: str | None = None
    """What could not be done; then nothing of the commands that followed was."""


@dataclass(frozen=True)
class Accept:
    """Sums that count may be added up now, and sessions that ended will push no more."""

    evaluation: int
    start: int
    """The place in the evaluation's log of the first of ``log``."""
    log: tuple[SumName, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    """A vector's shards are set (the first parameters; a resume). Answered by `Written`."""

    number: int
    name: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]


@dataclass(frozen=True)
class Written:
    """A server has what was written."""

    number: int
    server: str
    error: str | None = None
