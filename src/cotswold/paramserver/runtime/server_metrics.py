"""Counters of an update server, for its coordinator.

Knows: received bytes, CPU time, counters of queues and shards. Does not know: the placement of shards.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from cotswold.paramserver.core.rank_fanout import is_rank_of
from cotswold.paramserver.core.staleness import StalenessHistogram
from cotswold.paramserver.core.update_server import UpdateServer
from cotswold.shards.core.versions import update_count
from cotswold.shards.runtime.arithmetic import Array, bytes_of
from cotswold.wire import Update
from cotswold.wire.lifecycle import ServerCounters


class ServerMetrics:
    """Counters of one process; use it as a ``with`` context while updates are read, checked and applied."""

    def __init__(self) -> None:
        self._accepted_bytes = 0
        self._sent_bytes: Counter[str] = Counter()
        """Received bytes by sender."""
        self._applying_seconds = 0.0
        self._started_at: float | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> None:
        """Start the clock of updates; no effect if it runs already."""
        if self._started_at is None:
            self._started_at = time.thread_time()

    def end(self) -> None:
        """Stop the clock. Reading it is slow, so do not call this for each message."""
        if self._started_at is not None:
            self._applying_seconds, self._started_at = (
                self._applying_seconds + time.thread_time() - self._started_at,
                None,
            )

    def count_update(self, sender: str, update: Update, live: Sequence[str] | None = None) -> None:
        """Count an accepted update. ``live``: connected replicas; counters of others are dropped."""
        count = bytes_of(update.buffers)
        self._accepted_bytes += count
        if live is not None and sender not in self._sent_bytes:
            names = [name for name in self._sent_bytes if any(is_rank_of(name, each) for each in live)]
            self._sent_bytes = Counter({name: self._sent_bytes[name] for name in names})
        self._sent_bytes[sender] += count

    def counts(
        self, name: str, updates: Sequence[UpdateServer[Array]], refused: Mapping[str, int]
    ) -> ServerCounters:
        """Return all counters; ``refused`` are those of the endpoint."""
        histograms = [each for one in updates for each in one.staleness.values()]
        measured = sum(each.updates for each in histograms)
        reasons: Counter[str] = Counter(refused)
        replicas: dict[str, StalenessHistogram] = {}
        for one in updates:
            reasons.update(one.rejections)
            for replica, histogram in one.replicas.items():
                replicas[replica] = replicas.get(replica, StalenessHistogram()) + histogram
        return ServerCounters(
            name,
            sum(update_count(version) for one in updates for version in one.versions.values()),
            sum(each.total for each in histograms) / max(1, measured),
            max((each.largest for each in histograms), default=0),
            sum(one.queued_bytes for one in updates),
            tuple(sorted((+reasons).items())),
            len(histograms),
            sum(one.queued for one in updates),
            tuple(sorted({each for one in updates for each in one.waits_for})),
            tuple((replica, each.updates, each.mean, each.largest) for replica, each in replicas.items()),
            self._accepted_bytes,
            tuple(sorted(item for one in updates for item in one.versions.items())),
            self._applying_seconds,
            time.process_time(),
            tuple(sorted(self._sent_bytes.items())),
        )
