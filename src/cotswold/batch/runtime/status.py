"""Progress of a cluster, and the values of the event of a counted evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.batch.core.requests import EvaluationResult
from cotswold.shards.core.permutation import format_ranges


@dataclass(frozen=True)
class ClusterStatus:
    """Progress of a cluster."""

    evaluation: int
    """Number of the newest evaluation."""
    portions: int
    """Portions of the current or newest evaluation."""
    done: int
    """Number of these that are computed or counted."""
    samples: int
    """Number of samples in those portions; approximate, because the last portion may be smaller."""
    workers: int
    """Number of connected workers."""
    backups: int
    """Backup copies granted so far."""
    sent_bytes: int
    """Bytes that the coordinator has sent so far, including shared memory."""
    received_bytes: int


def counted_values(done: EvaluationResult, sample_set: str, *, is_drawn: bool) -> Mapping[str, object]:
    """Return the values of the event ``evaluation``; ``sample_set`` is the name of the set."""
    account = done.account
    return {
        "evaluation": done.evaluation,
        "subset_name": sample_set,
        "portions": format_ranges(done.portions),
        "is_drawn": is_drawn,
        "samples": done.samples,
        "seconds": account.seconds,
        "workers": dict(account.by_name),
        "backup_tasks": account.backups,
        "backup_tasks_used": account.backups_used,
        "portions_refused": account.refused,
        "portions_lost": account.lost,
        "portions_left_out": format_ranges(account.left_out),
    }
