"""Requests to a coordinator, and their results.

Knows: values. Does not know: the course of an evaluation (`batch.core.evaluation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire import ReductionSchedule, SumName

PlanFunction = Callable[[Sequence[str]], ReductionSchedule]
"""Return the plan of a reduction over these workers."""


@dataclass(frozen=True)
class EvaluationRequest:
    """A requested evaluation."""

    at: str
    gradient: str | None
    before: tuple[Command, ...] = ()
    after: tuple[Command, ...] = ()
    portions: tuple[int, ...] | None = None
    """Portions to evaluate, ascending. None selects some for ``cycle``, and a deadline may leave some of
    these out."""
    cycle: int = 0
    fraction: float = 1.0
    """Fraction of the samples to select."""
    keeps: tuple[str, ...] = ()
    """Vectors that workers keep; if empty, they pull ``at``."""
    changed: tuple[str, ...] = ()
    """Kept vectors that changed since the previous evaluation."""
    local: tuple[Command, ...] = ()
    """Commands that compute ``at`` from the kept vectors, after ``before`` has run on the shards."""


@dataclass(frozen=True)
class EvaluationCost:
    """Statistics of an evaluation."""

    seconds: float
    by_name: Mapping[str, int]
    """Number of portions that count, by worker."""
    backups: int
    """Backup copies that were granted."""
    backups_used: int
    """Backup copies that count."""
    refused: int
    """Sums that arrived too late."""
    lost: int
    """Portions that were granted again because a session ended."""
    left_out: tuple[int, ...]
    """Portions left out at the deadline."""
    reductions: int
    """Attempts at a reduction."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation."""

    evaluation: int
    dots: tuple[float, ...]
    """Results of the dot products among the commands that ran after it."""
    total: float
    """Sum of the values of all counted samples: correctly rounded, so independent of the order."""
    details: Mapping[str, float]
    """Further sums, also correctly rounded."""
    portions: tuple[int, ...]
    """Counted portions, ascending; each of their samples counts exactly once."""
    samples: int
    sums: Mapping[SumName, tuple[int, ...]]
    """Portions of each accepted sum."""
    account: EvaluationCost


@dataclass(frozen=True)
class Failure:
    """Reason for a stalled evaluation. It continues once workers join, with all results kept."""

    kind: str
    """``poisoned``, ``lonely`` or ``server``."""
    sentence: str
    portion: int | None = None
