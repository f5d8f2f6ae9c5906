"""Processes that decode and write shards.

Knows: pools, how much may be under way at a time. Does not know: what the shards are for.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from cotswold.data import shard as work
from cotswold.data.layout import Chunk
from cotswold.data.preparation import Preparation, Transform
from cotswold.data.shard import Broken, Shard, Worker
from cotswold.data.source import Source
from cotswold.data.whitening import Float32
from cotswold.errors import MachineError

T = TypeVar("T")

_UNDER_WAY = 2
"""Shards handed out for each process: one that it works on, one that waits."""
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28)),
}
"""Each process has one core to itself, and keeps the memory that it frees: otherwise the system clears the
same pages again for every picture, which takes a twentieth of the time."""


class Crew:
    """``jobs`` processes, or this one alone if ``jobs`` is 1; use in a `with` statement."""

    def __init__(self, source: Source, store: Path, preparation: Preparation, jobs: int) -> None:
        self._jobs, self._here = jobs, Worker(source, store, preparation)
        self._pool: ProcessPoolExecutor | None = None
        self._environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
        if jobs > 1:
            context = multiprocessing.get_context("forkserver")  # imports once, for all processes
            context.set_forkserver_preload(["__main__", work.__name__])
            self._pool = ProcessPoolExecutor(
                jobs, context, initializer=work.begin, initargs=(source, store, preparation)
            )

    def __enter__(self) -> Crew:
        if self._pool is not None:
            os.environ.update(_ENVIRONMENT)
            forkserver.ensure_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=True, cancel_futures=True)
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def look(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, tuple[Float32, Broken]]]:
        """Decode shards, keep their pixels, return their spectra, in order; may be left early."""
        if self._pool is None:
            yield from ((shard, self._here.look(shard)) for shard in shards)
        else:
            pool = self._pool
            yield from self._ordered((shard, pool.submit(work.look, shard)) for shard in shards)

    def write(
        self, shards: Iterable[Shard], transform: Transform, looked: Mapping[str, Broken]
    ) -> Iterator[tuple[Shard, tuple[Chunk, Broken]]]:
        """Write shards, in order; ``looked``: what `look` found broken in those that it has seen."""
        if self._pool is None:
            yield from ((s, self._here.write(s, transform, looked.get(s.key))) for s in shards)
        else:
            pool = self._pool
            yield from self._ordered(
                (s, pool.submit(work.write, s, transform, looked.get(s.key))) for s in shards
            )

    def _ordered(self, submitted: Iterator[tuple[Shard, Future[T]]]) -> Iterator[tuple[Shard, T]]:
        waiting: deque[tuple[Shard, Future[T]]] = deque()
        try:
            for pair in submitted:
                waiting.append(pair)
                if len(waiting) >= _UNDER_WAY * self._jobs:
                    shard, future = waiting.popleft()
                    yield shard, future.result()
            while waiting:
                shard, future = waiting.popleft()
                yield shard, future.result()
        except BrokenProcessPool as error:  # from a result, or because the pool takes nothing more
            raise MachineError(
                "a process that prepared pictures died, perhaps for want of memory; use fewer jobs and run "
                'the same command again to go on (a script of your own needs `if __name__ == "__main__":`)'
            ) from error
        finally:
            for _, future in waiting:
                future.cancel()
