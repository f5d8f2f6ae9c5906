"""Assembly of an evaluation's point on a worker: pulled, broadcast, or computed from kept vectors.

Knows: the vectors that a `StartEvaluation` requests, and their order. Does not know: portions, the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cotswold.batch.runtime.collectives import WorkerCollectives, broadcast_number
from cotswold.batch.runtime.pulls import VectorPulls, WorkerVectors
from cotswold.files.checksum import crc32
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.wire import Fetch, StartEvaluation, Welcome

Arrived = Callable[[], None]


class PointAssembly:
    """Points of one session, one after the other."""

    def __init__(
        self,
        welcome: Welcome,
        dtype: np.dtype[np.floating],
        pulls: VectorPulls,
        exchanges: WorkerCollectives,
    ) -> None:
        self._session, self._name, self._shards = welcome.session, welcome.name, welcome.shards
        self._size, self._dtype = max(one.stop for one in self._shards), dtype
        self._pulls, self._exchanges = pulls, exchanges
        self._vectors = WorkerVectors(self._size, dtype)
        self._begin: StartEvaluation | None = None

    def fetch(self, begin: StartEvaluation, arrived: Arrived, on_disconnect: Callable[[str], None]) -> None:
        """Fetch the vectors that ``begin`` requests, one after the other; then call ``arrived``.

        ``on_disconnect`` receives the name of a member lost in a broadcast. An earlier fetch is abandoned.
        """
        self.abandon()
        self._begin = begin
        self._next(begin, 0, arrived, on_disconnect)

    def abandon(self) -> None:
        """Abandon the current fetch."""
        self._begin = None
        self._pulls.clear()
        self._exchanges.abandon()

    def make(self, begin: StartEvaluation) -> tuple[Array, tuple[int, ...]]:
        """Compute the point from the fetched vectors; return it with its digests, if requested."""
        self._vectors.run(begin.commands, [one.name for one in begin.fetches])
        point = self._vectors[begin.at]
        if not begin.digests:
            return point, ()
        return point, tuple(crc32(raw(point[one.start : one.stop])) for one in self._shards)

    def _next(
        self, begin: StartEvaluation, place: int, arrived: Arrived, broke: Callable[[str], None]
    ) -> None:
        if self._begin is not begin:
            return  # replaced by another request
        if place == len(begin.fetches):
            arrived()
            return
        fetch = begin.fetches[place]

        def keep(vector: Array) -> None:
            if self._begin is begin:
                self._vectors[fetch.name] = vector
                self._next(begin, place + 1, arrived, broke)

        def share(vector: Array) -> None:
            assert fetch.plan is not None
            self._exchanges.begin(
                broadcast_number(begin.evaluation, place),
                fetch.plan,
                vector,
                is_broadcast=True,
                on_done=keep,
                on_disconnect=broke,
            )

        if fetch.plan is None:
            self._pull(begin, fetch, keep)
        elif fetch.plan.members[0] == self._name:
            self._pull(begin, fetch, share)
        else:
            share(np.zeros(self._size, self._dtype))

    def _pull(self, begin: StartEvaluation, fetch: Fetch, then: Callable[[Array], None]) -> None:
        self._pulls.fetch(
            session=self._session,
            evaluation=begin.evaluation,
            name=fetch.name,
            now=time.monotonic(),
            on_complete=then,
        )
