"""Processes that decode and write shards.

Knows: pools, how much may be under way at a time. Does not know: what the shards are for.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from cotswold.data import shard as work
from cotswold.data.manifest import Chunk
from cotswold.data.preparation import Transform
from cotswold.data.shard import Broken, Decoded, Shard, Worker
from cotswold.data.source import Source
from cotswold.errors import MachineError

T = TypeVar("T")

_UNDER_WAY = 2
"""Shards handed out for each process: one that it works on, one that waits."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Crew:
    """``jobs`` processes, or this one alone if ``jobs`` is 1; use in a `with` statement."""

    def __init__(self, source: Source, store: Path, jobs: int) -> None:
        self._jobs, self._here = jobs, Worker(source, store)
        self._pool: ProcessPoolExecutor | None = None
        self._environment = {name: os.environ.get(name) for name in _THREADS}
        if jobs > 1:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(jobs, spawn, initializer=work.begin, initargs=(source, store))

    def __enter__(self) -> Crew:
        if self._pool is not None:  # processes start when work comes; each has one core to itself
            os.environ.update(dict.fromkeys(_THREADS, "1"))
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

    def decode(self, shards: Iterable[Shard], plain: Transform) -> Iterator[tuple[Shard, Decoded]]:
        """The pixels of shards, in their order; ends early without harm."""
        if self._pool is None:
            yield from ((shard, self._here.decode(shard, plain)) for shard in shards)
        else:
            pool = self._pool
            yield from self._ordered((shard, pool.submit(work.decode, shard, plain)) for shard in shards)

    def write(
        self, shards: Iterable[tuple[Shard, Decoded | None]], transform: Transform
    ) -> Iterator[tuple[Shard, tuple[Chunk, Broken]]]:
        """Write shards, those with pixels without decoding them again; what was written, in order."""
        if self._pool is None:
            yield from ((shard, self._here.write(shard, transform, decoded)) for shard, decoded in shards)
        else:
            pool = self._pool
            yield from self._ordered(
                (shard, pool.submit(work.write, shard, transform, decoded)) for shard, decoded in shards
            )

    def _ordered(self, submitted: Iterator[tuple[Shard, Future[T]]]) -> Iterator[tuple[Shard, T]]:
        waiting: deque[tuple[Shard, Future[T]]] = deque()
        try:
            for pair in submitted:
                waiting.append(pair)
                if len(waiting) >= _UNDER_WAY * self._jobs:
                    yield _result(*waiting.popleft())
            while waiting:
                yield _result(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()


def _result(shard: Shard, future: Future[T]) -> tuple[Shard, T]:
    try:
        return shard, future.result()
    except BrokenProcessPool as error:
        raise MachineError(
            f"a process died while it prepared {shard.key}, perhaps for want of memory; use fewer jobs and run the "
            'same command again to go on (a script of your own needs `if __name__ == "__main__":`)'
        ) from error
