"""Messages from the coordinator to a worker.

Knows: the fields. Does not know: the replies.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import Fetch, Grant, Plan, Shard


@dataclass(frozen=True)
class Welcome:
    """A worker's session begins."""

    name: str
    attempt: int
    session: int
    seed: int
    patterns: int
    portion: int
    """Patterns per portion; the last portion may have fewer. With ``seed`` and ``patterns`` it determines the
    permutation (`shards.core.permutation`)."""
    tree: bool
    """True if the worker's sums must be nodes of the tree."""
    pushes: bool
    """True if the worker pushes its last sums to the servers itself; otherwise it keeps them for a
    reduction."""
    flush_seconds: float
    """Maximum age in seconds of a sum before the worker pushes it without a request."""
    beat_seconds: float
    retry_seconds: float
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """(name, address) of each server."""
    settings: str
    """Settings of the worker's process, as JSON."""


@dataclass(frozen=True)
class Begin:
    """Start an evaluation. A higher attempt cancels everything of the lower ones."""

    session: int
    evaluation: int
    attempt: int
    at: str
    gradient: bool
    fetches: tuple[Fetch, ...]
    """Vectors to fetch first."""
    commands: tuple[Command, ...]
    """Commands to run next on the worker's own vectors; they produce ``at``."""
    digests: bool
    """True if `Ready` must contain digests of the point."""


@dataclass(frozen=True)
class Grants:
    """Portions to compute, in this order."""

    session: int
    evaluation: int
    grants: tuple[Grant, ...]


@dataclass(frozen=True)
class Apart:
    """Another worker computes this portion too: unless it is already summed, keep it as a separate sum."""

    session: int
    evaluation: int
    grant: int


@dataclass(frozen=True)
class Flush:
    """Push the current sums to the servers now."""

    session: int
    evaluation: int
    lasts: bool
    """True if from now on every portion is pushed as soon as it is computed."""


@dataclass(frozen=True)
class Heard:
    """The coordinator has recorded these grants' results; they need not be repeated in heartbeats."""

    session: int
    evaluation: int
    grants: tuple[int, ...]


@dataclass(frozen=True)
class Settled:
    """The outcome of a sum is final; the worker can forget its numbers."""

    session: int
    evaluation: int
    number: int
    accepted: bool


@dataclass(frozen=True)
class Reduce:
    """Add the named sums over the plan's members; the first member pushes the result.

    All members keep their own sums until these are settled, because another attempt may follow.
    """

    session: int
    evaluation: int
    attempt: int
    plan: Plan
    numbers: tuple[int, ...]
    """Numbers of this worker's sums in the reduction."""
    portions: tuple[tuple[int, ...], ...]
    """Portions that each of them must contain, ascending. A worker whose sum contains others answers with
    `Aborted`."""


@dataclass(frozen=True)
class End:
    """End an evaluation: drop everything left of it."""

    session: int
    evaluation: int


@dataclass(frozen=True)
class Rejoin:
    """The session is void: the worker drops all of its state and may join again."""

    session: int


@dataclass(frozen=True)
class Dismiss:
    """A worker, a trainer or a data server of a pool may exit."""

    session: int
    why: str = ""
    """Reason for a forced exit; empty for a normal one."""


@dataclass(frozen=True)
class Validate:
    """Fetch ``at`` and evaluate a run of held-out patterns there."""

    session: int
    number: int
    at: str
    run: int
    portions: tuple[tuple[int, int], ...]
    """(start, stop) of each portion; each is a separate sum."""
