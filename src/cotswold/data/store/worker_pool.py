"""Process pools for work on shards of samples, or on parts of any task.

Knows: pools, limits of work in progress. Does not know: the work.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from PIL import Image

from cotswold.data.store.layout import Chunk
from cotswold.data.store.shard import BrokenSamples, SeenT, ShardWork, StoreShard, TransformT
from cotswold.errors import MachineError

T = TypeVar("T")
KeyT = TypeVar("KeyT")
WorkT = TypeVar("WorkT")

_SHARDS_PER_PROCESS = 2
"""Shards submitted per process: one in progress, one queued."""
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28)),
}
"""Environment of worker processes.

Each process uses one core and keeps freed memory. Otherwise the system clears the same pages again for every
image, which takes a twentieth of the time.
"""

_START_LOCK = threading.Lock()
"""Held by the thread that hides the origin of the main module."""


class Workers(Generic[WorkT]):
    """A pool of ``jobs`` processes that have ``work``; with 1, this process. Use it in a `with` statement."""

    def __init__(self, work: WorkT, jobs: int) -> None:
        self._jobs, self._local_work = jobs, work
        self._pool: ProcessPoolExecutor | None = None
        self._main = jobs > 1 and b"__main__" in pickle.dumps(work)
        if jobs > 1:
            context = multiprocessing.get_context("forkserver")  # imports once for all processes
            context.set_forkserver_preload([*["__main__"] * self._main, type(work).__module__, __name__])
            self._pool = ProcessPoolExecutor(jobs, context, initializer=_initialise_worker, initargs=(work,))

    def __enter__(self) -> Self:
        if self._pool is not None:
            with self._hidden_main_module(), _own_environment():  # processes inherit the server's
                forkserver.ensure_running()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _hidden_main_module(self) -> Iterator[None]:
        """Start processes without importing the main module, unless the work is defined in it.

        The import would run a script without `if __name__ == "__main__":` again. multiprocessing reads the
        origin of the main module from its attributes, which are hidden meanwhile. The module itself stays in
        place, because other threads may pickle its objects.
        """
        if self._main:
            yield
            return
        about = vars(sys.modules["__main__"])
        with _START_LOCK:
            known: dict[str, Any] = {name: about[name] for name in ("__file__", "__spec__") if name in about}
            about.pop("__file__", None)
            about["__spec__"] = None
            try:
                yield
            finally:
                about.update(known)

    def _submit(self, pool: ProcessPoolExecutor, function: Callable[..., T], *words: object) -> Future[T]:
        with self._hidden_main_module():  # a pool starts its processes on demand
            return pool.submit(function, *words)

    def map(self, function: Callable[[WorkT, KeyT], T], keys: Iterable[KeyT]) -> Iterator[tuple[KeyT, T]]:
        """Yield (key, ``function(work, key)``) in order; may be abandoned early. The function is
        module-level.
        """
        if self._pool is None:
            yield from ((key, function(self._local_work, key)) for key in keys)
        else:
            pool = self._pool
            yield from self._ordered((key, self._submit(pool, _apply, function, key)) for key in keys)

    def _ordered(
        self,
        submitted: Iterator[tuple[KeyT, Future[T]]],
        abandoned: deque[tuple[KeyT, Future[T]]] | None = None,
    ) -> Iterator[tuple[KeyT, T]]:
        """Yield results in order. ``abandoned`` receives the calls in progress if the iteration ends early;
        without it they are cancelled.
        """
        waiting: deque[tuple[KeyT, Future[T]]] = deque()
        try:
            for pair in submitted:
                waiting.append(pair)
                if len(waiting) >= _SHARDS_PER_PROCESS * self._jobs:
                    key, future = waiting.popleft()
                    yield key, future.result()
            while waiting:
                key, future = waiting.popleft()
                yield key, future.result()
        except BrokenProcessPool as error:  # from a result or a submission
            raise MachineError(
                "a process that prepared samples died, perhaps because memory ran out; use fewer jobs and "
                "run the same command again to resume"
            ) from error
        finally:
            if abandoned is not None:
                abandoned.extend(waiting)
            else:
                for _, future in waiting:
                    future.cancel()


class WorkerPool(Workers[ShardWork[SeenT, TransformT]]):
    """A pool that works on shards."""

    def __init__(self, work: ShardWork[SeenT, TransformT], jobs: int) -> None:
        super().__init__(work, jobs)
        self._ahead: deque[tuple[StoreShard, Future[tuple[SeenT, BrokenSamples]]]] = deque()

    def measure(
        self, shards: Iterable[StoreShard]
    ) -> Iterator[tuple[StoreShard, tuple[SeenT, BrokenSamples]]]:
        """Look at shards, in order; may be abandoned early.

        The processes then finish the shards that they were given, and `write` uses the results.
        """
        pool = self._pool
        if pool is None:
            yield from self.map(_measure, shards)
        else:
            calls = ((shard, self._submit(pool, _apply, _measure, shard)) for shard in shards)
            yield from self._ordered(calls, self._ahead)

    def write(
        self, shards: Iterable[StoreShard], transform: TransformT, looked: Mapping[str, BrokenSamples]
    ) -> Iterator[tuple[StoreShard, tuple[Chunk, BrokenSamples]]]:
        """Write shards, in order; ``looked`` maps shards to the broken samples found by `measure`."""
        ahead = {shard.key: future for shard, future in self._ahead}

        def broken(key: str) -> BrokenSamples | None:
            if key not in ahead:
                return looked.get(key)
            # a shard that failed is decoded again, so that its error comes in order
            return None if ahead[key].exception() else ahead[key].result()[1]

        words = ((shard, transform, broken(shard.key)) for shard in shards)
        for (shard, _, _), written in self.map(_write, words):
            yield shard, written


@contextmanager
def _own_environment() -> Iterator[None]:
    """Set the pool's environment variables inside a `with` block."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_work: Any = None  # the only way to give pool processes a state


def _initialise_worker(work: object) -> None:
    """Initialise a process of the pool; it exits when its parent exits for any reason."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    wait([parent])
    os._exit(1)


def _apply(function: Callable[[Any, KeyT], T], key: KeyT) -> T:
    assert _work is not None
    return function(_work, key)


def _measure(work: ShardWork[SeenT, Any], shard: StoreShard) -> tuple[SeenT, BrokenSamples]:
    return work.measure(shard)


def _write(
    work: ShardWork[Any, TransformT], words: tuple[StoreShard, TransformT, BrokenSamples | None]
) -> tuple[Chunk, BrokenSamples]:
    return work.write(*words)
