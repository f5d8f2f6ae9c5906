"""Messages from a worker to the coordinator.

Knows: the fields. Does not know: the replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.wire.types import Held, PortionResult


@dataclass(frozen=True)
class Join:
    """A worker has connected and built its work; it waits for `Welcome`."""

    name: str
    """Name of the process; no other process ever uses it."""
    attempt: int
    """Number of this join; a higher number ends the session of a lower one."""
    address: str
    """Address at which peers and the coordinator reach the worker."""
    patterns: int
    """Number of patterns of its work; the same for all workers."""
    size: int
    """Length of its parameters; the same for all workers."""


@dataclass(frozen=True)
class Beat:
    """Heartbeat of a worker, with its state; the coordinator detects lost messages from it and sends them
    again."""

    session: int
    evaluation: int
    """Newest evaluation that the worker knows; 0 for none."""
    attempt: int
    """Newest attempt of its `StartEvaluation` or `Reduce`."""
    is_ready: bool
    """True if the worker has the point."""
    is_flushed: bool
    """True if the worker has received `FlushSums`."""
    granted: tuple[int, ...]
    """Grants that are queued or being computed."""
    held: tuple[Held, ...]
    """Computed portions, except those that the coordinator has acknowledged by `ResultsAck`."""
    heard: tuple[tuple[int, int], ...]
    """Grants that are computed and acknowledged but not settled: (first, last) of each range."""


@dataclass(frozen=True)
class Ready:
    """The worker has the point of the evaluation and computes its grants."""

    session: int
    evaluation: int
    attempt: int
    digests: tuple[int, ...]
    """One digest per shard of the point; empty if none were requested."""


@dataclass(frozen=True)
class Computed:
    """Portions are computed; the worker can take more grants."""

    session: int
    evaluation: int
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Failed:
    """A portion cannot be computed; the worker continues with the others."""

    session: int
    evaluation: int
    grant: int
    portion: int
    error: str
    """One sentence."""


@dataclass(frozen=True)
class Pushed:
    """All servers have acknowledged a sum."""

    session: int
    evaluation: int
    number: int
    results: tuple[PortionResult, ...]
    """Results of its portions; empty for a reduction, whose portions the coordinator knows."""
    attempt: int = 0
    """Attempt of the reduction that produced the sum; 0 for a sum of one worker."""


@dataclass(frozen=True)
class Aborted:
    """A broadcast or a reduction was aborted."""

    session: int
    evaluation: int
    attempt: int
    lost: str
    """Name of the unreachable member, or empty."""


@dataclass(frozen=True)
class Leave:
    """The worker wants to leave (spot notice, request of its user). Its results are settled first; then
    `Shutdown` follows."""

    session: int
    reason: str


@dataclass(frozen=True)
class HeldSum:
    """The sums of a portion of held-out patterns."""

    value: float
    samples: int
    details: Mapping[str, float]


@dataclass(frozen=True)
class Validated:
    """The sums of a run of held-out patterns, one per portion."""

    session: int
    number: int
    run: int
    sums: tuple[HeldSum, ...]
    error: str | None = None
