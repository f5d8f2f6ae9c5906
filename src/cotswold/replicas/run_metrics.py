"""Metrics of one run on a standalone cluster, computed from the servers' totals.

Knows: which figures belong to a server's whole process. Does not know: who asks, the other runs.

A server reports figures of buckets per run already. Its processor time, its accepted and refused updates,
and its disk delay are those of its process, which served other runs before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace

from cotswold.wire.lifecycle import FlushBacklog, ServerCounters

Counted = tuple[tuple[str, int], ...]
_SERVERS = 1000
"""Number of servers whose first report is remembered."""


class RunMetrics:
    """Metrics since the run began; the first report of a server is its baseline."""

    def __init__(self) -> None:
        self._first: OrderedDict[str, ServerCounters] = OrderedDict()
        """First reports by server, most recently used last."""
        self._longest: dict[str, float] = {}
        """Longest window seen of each server."""

    def of(self, counts: ServerCounters) -> ServerCounters:
        """The counts without those from before the run."""
        first = self._first.setdefault(counts.server, counts)
        self._first.move_to_end(counts.server)
        if len(self._first) > _SERVERS:
            old, _ = self._first.popitem(last=False)
            self._longest.pop(old, None)
        return replace(
            counts,
            refused=_increase(counts.refused, first.refused),
            accepted_bytes=counts.accepted_bytes - first.accepted_bytes,
            applying_seconds=counts.applying_seconds - first.applying_seconds,
            cpu_seconds=counts.cpu_seconds - first.cpu_seconds,
            sent_bytes=_increase(counts.sent_bytes, first.sent_bytes),
            unsaved=None if counts.unsaved is None else self._unsaved(counts.server, counts.unsaved, first),
        )

    def _unsaved(self, server: str, unsaved: FlushBacklog, first: ServerCounters) -> FlushBacklog:
        before = unsaved.longest_seconds if first.unsaved is None else first.unsaved.longest_seconds
        seen = max(self._longest.get(server, 0.0), unsaved.window_seconds)
        if unsaved.longest_seconds > before:
            seen = max(seen, unsaved.longest_seconds)
        self._longest[server] = seen
        return replace(unsaved, longest_seconds=seen)


def _increase(now: Counted, before: Counted) -> Counted:
    """The increases since the earlier counts."""
    return tuple(sorted((Counter(dict(now)) - Counter(dict(before))).items()))
