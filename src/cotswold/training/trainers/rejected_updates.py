"""Rejected pushes: the end of a run that learns nothing, and a warning before it.

Knows: the numbers of samples counted, rejected and torn. Does not know: the reason of each, what a run does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotswold.shards.core.sample_ledger import SampleCounts
from cotswold.wire.lifecycle import ServerCounters

BATCHES = 20
"""The number of consecutive batches of which none counts that ends a run."""


class RejectedUpdates:
    """Track the ledger's totals of a run with ``batch`` samples per mini-batch.

    Some servers rejected a torn sample, so it counts as rejected here.
    """

    def __init__(self, batch: int) -> None:
        self._least = BATCHES * batch
        self._counted = self._rejected = 0
        self._has_warned = False

    def consecutive_rejections(self, total: SampleCounts) -> int:
        """Return the number of consecutive rejected samples; 0 if some sample counted or there are too
        few.
        """
        now = total.refused + total.torn
        if total.counted > self._counted or now < self._rejected:
            self._counted, self._rejected = total.counted, now
        refused = now - self._rejected
        return refused if refused >= self._least else 0

    def warning(self, total: SampleCounts, count: Callable[[], Sequence[ServerCounters]]) -> str:
        """Return a warning once a continuing run has lost `BATCHES` mini-batches, some of them not finite.

        Before that, and after the first warning, the result is empty. ``count`` queries the servers.
        """
        if self._has_warned or total.refused + total.torn < self._least:
            return ""
        counts = count()
        self._has_warned = "finite" in _nonzero_counts(counts)
        return describe_rejections(total, counts) if self._has_warned else ""


def describe_rejections(total: SampleCounts, counts: Sequence[ServerCounters]) -> str:
    """Return the numbers of rejected and torn samples and the reasons; empty if there are none."""
    why = kinds(counts)
    parts = [f"servers rejected {total.refused:,} samples"] if total.refused else []
    if total.torn:
        parts.append(f"{total.torn:,} samples are torn: some servers applied them, others did not")
    return "; ".join(parts) + (f" ({why})" if parts and why else "")


def kinds(counts: Sequence[ServerCounters]) -> str:
    """Return the reasons of rejections, such as `not finite, too stale`.

    Numbers are omitted, because each server counts its part of a push separately.
    """
    told = {"finite": "not finite", "stale": "too stale"}
    return ", ".join(told[word] for word in _nonzero_counts(counts) if word in told)


def _nonzero_counts(counts: Sequence[ServerCounters]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for each in counts:
        for word, number in each.refused:
            if word not in ("busy", "marker"):
                found[word] = found.get(word, 0) + number
    return dict(sorted(found.items()))
