"""Settings of a coordinator: the course of evaluations, and timeouts.

Knows: limits, with their units. Does not know: callers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.shards.core.permutation import PortionPermutation


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of all evaluations of a run."""

    permutation: PortionPermutation
    size: int
    """Length of the parameters."""
    pushes: bool = True
    """True if each worker pushes its sums to the servers (Dean et al. 2012); otherwise workers keep them, and
    they are reduced at the end (Aberdeen et al. 2000)."""
    tree: bool = False
    """True if sums are added along the tree over portions: the result is bitwise independent of the
    workers."""
    prefetch: int = 1
    """Minimum number of portions queued at a worker, in addition to the one that it computes."""
    queue_seconds: float = 0.1
    """Time in seconds that a worker's granted portions should last; short portions are granted in larger
    numbers."""
    backup_tasks: int = 1
    """Maximum number of further workers that compute one of the last portions; 0 disables backup tasks."""
    flush_seconds: float = 1.0
    """Age at which a worker pushes a sum, with any kind of reduction; limits the loss when a worker dies."""
    deadline_factor: float | None = None
    """Factor of the expected seconds, at the workers' newest speeds, after which an evaluation that may
    choose its portions ends, once `least` is done; None waits for all."""
    least: float = 0.5
    """Fraction of an evaluation's portions that a deadline waits for."""
    beat_seconds: float = 0.5
    silent_seconds: float = 10.0
    """Timeout after which a worker's session is void and its portions go to others."""
    retry_seconds: float = 2.0
    """Interval at which unanswered messages are repeated."""
    no_worker_seconds: float = 60.0
    """Timeout after which an evaluation without workers reports a failure."""
    deaths: int = 4
    """Number of consecutive worker deaths with a portion assigned, without other deaths, after which the
    portion is blamed."""
    open_sums: int = 4
    """Maximum number of a worker's pushed portions without a reply; beyond it, the worker receives no
    more."""
    settings: str = "{}"
    """Settings of the workers, as JSON."""

    def __post_init__(self) -> None:
        if self.tree and not self.pushes:
            raise ValueError("tree requires pushes: sums along the tree are pushed to the servers")
        if self.deadline_factor is not None and not self.deadline_factor > 0:
            raise ValueError(f"deadline_factor must be above 0, got {self.deadline_factor}")
        if not 0 < self.least <= 1:
            raise ValueError(f"least must be above 0 and at most 1, got {self.least}")
        for name, least in (
            ("prefetch", 0),
            ("backup_tasks", 0),
            ("deaths", 1),
            ("open_sums", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.queue_seconds >= 0:
            raise ValueError(f"queue_seconds must be at least 0, got {self.queue_seconds}")
        for name in ("flush_seconds", "beat_seconds", "silent_seconds", "retry_seconds", "no_worker_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
