"""Messages between the coordinator and a worker in whole-set training.

Knows: the fields. Does not know: the replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import ComputedPortion, Fetch, Grant, PortionResult, ReductionSchedule, Shard


@dataclass(frozen=True)
class Join:
    """A worker has connected and built its work; it waits for `Welcome`."""

    name: str
    """Name of the process; no other process ever uses it."""
    attempt: int
    """Number of this join; a higher number ends the session of a lower one."""
    address: str
    """Address at which peers and the coordinator reach the worker."""
    samples: int
    """Number of samples of its work; the same for all workers."""
    size: int
    """Length of its parameters; the same for all workers."""


@dataclass(frozen=True)
class WorkerHeartbeat:
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
    computed: tuple[ComputedPortion, ...]
    """Computed portions, except those that the coordinator has acknowledged by `ResultsAck`."""
    acknowledged: tuple[tuple[int, int], ...]
    """Grants that are computed and acknowledged but not settled: (first, last) of each range."""


@dataclass(frozen=True)
class PointReady:
    """The worker has the point of the evaluation and computes its grants."""

    session: int
    evaluation: int
    attempt: int
    digests: tuple[int, ...]
    """One digest per shard of the point; empty if none were requested."""


@dataclass(frozen=True)
class PortionsComputed:
    """Portions are computed; the worker can take more grants."""

    session: int
    evaluation: int
    computed: tuple[ComputedPortion, ...]


@dataclass(frozen=True)
class PortionFailed:
    """A portion cannot be computed; the worker continues with the others."""

    session: int
    evaluation: int
    grant: int
    portion: int
    error: str
    """One sentence."""


@dataclass(frozen=True)
class SumPushed:
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
    unreachable: str
    """Name of the unreachable member, or empty."""


@dataclass(frozen=True)
class Leave:
    """The worker wants to leave (spot notice, request of its user). Its results are settled first; then
    `Shutdown` follows."""

    session: int
    reason: str


@dataclass(frozen=True)
class HeldOutSum:
    """The sums of a portion of held-out samples."""

    value: float
    samples: int
    details: Mapping[str, float]


@dataclass(frozen=True)
class Validated:
    """The sums of a run of held-out samples, one per portion."""

    session: int
    number: int
    run: int
    sums: tuple[HeldOutSum, ...]
    error: str | None = None


@dataclass(frozen=True)
class Welcome:
    """A worker's session begins."""

    name: str
    attempt: int
    session: int
    seed: int
    samples: int
    portion_size: int
    """Samples per portion; the last portion may have fewer. With ``seed`` and ``samples`` it determines the
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
class StartEvaluation:
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
    """True if `PointReady` must contain digests of the point."""


@dataclass(frozen=True)
class Grants:
    """Portions to compute, in this order."""

    session: int
    evaluation: int
    grants: tuple[Grant, ...]


@dataclass(frozen=True)
class IsolatePortion:
    """Another worker computes this portion too: unless it is already summed, keep it as a separate sum."""

    session: int
    evaluation: int
    grant: int


@dataclass(frozen=True)
class FlushSums:
    """Push the current sums to the servers now."""

    session: int
    evaluation: int
    lasts: bool
    """True if from now on every portion is pushed as soon as it is computed."""


@dataclass(frozen=True)
class ResultsAck:
    """The coordinator has recorded these grants' results; they need not be repeated in heartbeats."""

    session: int
    evaluation: int
    grants: tuple[int, ...]


@dataclass(frozen=True)
class SumOutcome:
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
    plan: ReductionSchedule
    numbers: tuple[int, ...]
    """Numbers of this worker's sums in the reduction."""
    portions: tuple[tuple[int, ...], ...]
    """Portions that each of them must contain, ascending. A worker whose sum contains others answers with
    `Aborted`."""


@dataclass(frozen=True)
class EndEvaluation:
    """End an evaluation: drop everything left of it."""

    session: int
    evaluation: int


@dataclass(frozen=True)
class SessionExpired:
    """The session is void: the worker drops all of its state and may join again."""

    session: int


@dataclass(frozen=True)
class Shutdown:
    """A worker, a trainer or a data server of a pool may exit."""

    session: int
    why: str = ""
    """Reason for a forced exit; empty for a normal one."""


@dataclass(frozen=True)
class Validate:
    """Fetch ``at`` and evaluate a run of held-out samples there."""

    session: int
    number: int
    at: str
    run: int
    portions: tuple[tuple[int, int], ...]
    """(start, stop) of each portion; each is a separate sum."""
