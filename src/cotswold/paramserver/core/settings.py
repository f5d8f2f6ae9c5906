"""Settings of asynchronous training: of a server's shards and of the coordinator of replicas.

Knows: rules, schedules, staleness bounds, the fields and their limits. Does not know: sessions, queues, the
code that applies updates, the use of the coordinator's settings (`paramserver.core.dispatcher`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Rule
from cotswold.paramserver.core.staleness import Staleness


@dataclass(frozen=True)
class QueueLimits:
    """Queue limits in bytes; an update that finds the queue empty is accepted at any size."""

    shard_bytes: int
    """Limit for one shard."""
    all_bytes: int
    """Limit for all shards of a server."""


@dataclass(frozen=True)
class AsyncSettings:
    """Settings of a run's shards."""

    run: str
    name: str
    """Name of the vector that updates change."""
    rule: Rule
    columns: Mapping[str, int]
    """Numbers per row of each tensor."""
    item_bytes: int
    room: QueueLimits
    staleness: Staleness = field(default_factory=Staleness)
    unit_norm: frozenset[str] = frozenset()
    """Tensors whose filters have norm 1: rows of matrices."""
    schedule: SampleSchedule = field(default_factory=SampleSchedule)
    """Computes an update's rate from that of its version and the position of its first sample."""
    products: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For tensors that are not matrices: the description of the product that turns factors into gradients."""
    may_repeat_samples: bool = False
    """True if the coordinator assigns the samples. Then a position names one sample in all sessions, and each
    shard applies it once. Otherwise each session numbers its own samples."""


@dataclass(frozen=True)
class DispatcherSettings:
    """Settings of the coordinator of replicas."""

    run: str
    samples: int
    """Samples per epoch."""
    size: int
    """Length of the parameters."""
    epochs: int
    rate: float
    """Initial learning rate."""
    assignment_samples: int
    """Maximum samples per assignment."""
    assignments_ahead: int
    """A replica with fewer assigned samples than this receives more."""
    fraction: float = 0.75
    """Fraction of samples, or of replicas, that must be done before an epoch ends."""
    of: str = "samples"
    """Unit of ``fraction``: ``samples`` or ``replicas``."""
    warm_samples: int = 0
    """Number of samples that a single replica computes first."""
    state_seconds: float = 0.5
    """Seconds between two coordinator states, which ask servers for their applied samples."""
    tail_seconds: float = 0.02
    """The same, while replicas wait for the last samples of an epoch."""
    beat_seconds: float = 0.5
    silent_seconds: float = 10.0
    """Seconds until a silent replica's session ends."""
    retry_seconds: float = 2.0
    settings: str = "{}"
    """Settings of the replicas, as JSON."""

    def __post_init__(self) -> None:
        for name in ("samples", "size", "epochs", "assignment_samples", "assignments_ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        if self.of not in ("samples", "replicas"):
            raise ValueError(f"of must be 'samples' or 'replicas', got {self.of!r}")
        if self.warm_samples < 0:
            raise ValueError(f"warm_samples must be at least 0, got {self.warm_samples}")
        for name in ("state_seconds", "tail_seconds", "beat_seconds", "silent_seconds", "retry_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class DispatcherCounters:
    """Numbers that a resumed run must not assign again."""

    session: int = 0
    """Newest session."""
    rates: tuple[tuple[int, float], ...] = ()
    """(version, learning rate); the newest is in force."""
