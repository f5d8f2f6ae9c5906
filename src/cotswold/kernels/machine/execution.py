"""Execution of compiled kernels: a prepared kernel, and the threads that run it.

Knows: that a job is a table of integers, scratch memory, torch's OpenMP pool. Does not know: what a kernel
computes.

Kernels use torch's pool, so that no second pool competes with it. A forked process must not enter the pool
of its parent, because it does not have those threads. There, or if the OpenMP library has no
`GOMP_parallel`, Python threads run the work; ctypes releases the GIL during a kernel. With either pool, no
thread is inside a job when `run_in_threads` returns or raises, so its memory can be freed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

_is_forked = False


def _note_fork() -> None:
    global _is_forked
    _is_forked = True
    _thread_pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@lru_cache(maxsize=1)
def _openmp() -> int | None:
    """Address of `GOMP_parallel` of the OpenMP library that torch has loaded."""
    for name in _openmp_libraries():
        try:
            parallel = ctypes.CDLL(name).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(parallel, ctypes.c_void_p).value
    return None


def _openmp_libraries() -> Iterator[str]:
    """Yield torch's own OpenMP library, then those that the process has loaded."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        yield str(path)
    maps = Path("/proc/self/maps")
    if maps.exists():
        loaded = {
            line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line and ".so" in line
        }
        yield from sorted(loaded)


@lru_cache(maxsize=1)
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="cotswold")


@lru_cache(maxsize=4096)
def _function(address: int) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


def _rounding_module() -> ModuleType:
    """Import the module that equalises rounding; only when a second thread is needed."""
    return importlib.import_module("cotswold.kernels.compile.team")


def _member(address: int, job: int) -> Callable[[int], None]:
    """Return the function that a Python thread calls."""
    found: Callable[[int], None] = _rounding_module().member_of(address, job)
    return found


SERIAL_BELOW = 1 << 14
"""Elements of a pass below which other threads are not worth waking."""
CHEAP_SERIAL_BELOW = 1 << 15
"""The same for passes of a few operations an element: two threads take as long as one for 2^14 elements."""
FLOPS_A_THREAD = 2e6
"""Least work of a thread of a product or convolution."""


def threads_for(elements: int, threads: int) -> int:
    """Return the number of threads for a pass over some elements: 1 if they are few."""
    return 1 if elements < SERIAL_BELOW else threads


def threads_for_cheap_pass(elements: int, threads: int) -> int:
    """Return the number of threads for a pass of a few operations an element."""
    return 1 if elements < CHEAP_SERIAL_BELOW else threads


def threads_for_flops(flops: float, threads: int) -> int:
    """Return the number of threads for a product or convolution."""
    return max(1, min(threads, int(flops / FLOPS_A_THREAD)))


def run_in_threads(address: int, job: int, threads: int) -> None:
    """Call ``work(job)`` on ``threads`` threads at once; return when all have finished.

    All threads round as the calling thread does, including flushed denormal numbers.
    """
    if threads <= 1:
        _function(address)(job)
        return
    parallel = None if _is_forked else _openmp()
    if parallel is not None:
        _rounding_module().enter()(parallel, address, job, threads)
        return
    shared = _SharedWork(_member(address, job), job)
    try:
        for _ in range(threads - 1):
            _thread_pool().submit(shared.help)
        shared.work(job)
    finally:
        shared.close()


class _SharedWork:
    """One job shared by Python threads; a thread that arrives after the end does not enter."""

    def __init__(self, work: Callable[[int], None], job: int) -> None:
        self.work, self._job = work, job
        self._changed = threading.Condition()
        self._active_threads, self._open = 0, True

    def help(self) -> None:
        """Work on the job unless it is finished."""
        with self._changed:
            if not self._open:
                return
            self._active_threads += 1
        try:
            self.work(self._job)
        finally:
            with self._changed:
                self._active_threads -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Wait until all threads have left, even if signals interrupt; then raise the interruption."""
        interrupt: BaseException | None = None
        while self._open or self._active_threads:
            try:
                with self._changed:
                    self._open = False
                    self._changed.wait_for(lambda: not self._active_threads)
            except BaseException as error:  # from a signal handler, in the main thread
                interrupt = error
        if interrupt is not None:
            raise interrupt


LINE = 64
"""Bytes of a cache line; scratch starts at one."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class PreparedKernel:
    """Compiled code, its job except the addresses of operands, and the number of threads to use."""

    code: int
    """Address of ``work(job)``."""
    job: NDArray[np.int64]
    operand_slots: tuple[int, ...]
    """Fields of the job for the operands' addresses, in the order in which `run` takes them."""
    scratch_slot: int
    """Field of the job for the address of scratch."""
    scratch_bytes: int
    """Bytes of scratch of all threads."""
    threads: int
    keepalive: object = None
    """Objects that the job points to, kept alive."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tables."""
        return self.job.nbytes + _bytes_of(self.keepalive)

    def run(self, *addresses: int) -> None:
        """Run the kernel on operands at these addresses; the caller keeps them alive during the call."""
        size = len(self.job)
        # each call has its own job: several Python threads may run one kernel at a time
        job = (ctypes.c_int64 * size).from_buffer_copy(self.job.data)
        for place, address in zip(self.operand_slots, addresses, strict=True):
            job[place] = address
        scratch = None
        if self.scratch_bytes:
            scratch = torch.empty(self.scratch_bytes + LINE, dtype=torch.uint8, device="cpu")
            job[self.scratch_slot] = -(-scratch.data_ptr() // LINE) * LINE
        run_in_threads(self.code, ctypes.addressof(job), self.threads)
        del scratch  # the kernel has used it until here


class LruCache(dict[K, V]):
    """A cache of at most ``capacity`` values, and about ``most_bytes`` bytes of them, by key.

    If there are too many, the values that nobody has used for the longest time are removed. The bytes of a
    value are its attribute ``nbytes``; others count 0.
    """

    def __init__(self, capacity: int, most_bytes: int = 1 << 62) -> None:
        super().__init__()
        self._capacity, self._most_bytes = capacity, most_bytes
        self._clock, self._used = count(), dict[K, int]()

    def find(self, key: K) -> V | None:
        """Return the value of a key and note its use; None if there is none."""
        found = self.get(key)
        if found is not None:
            self._used[key] = next(self._clock)
        return found

    def put(self, key: K, make: Callable[[], V]) -> V:
        """Create the value of a key and store it; remove others if there are too many."""
        found = self[key] = make()
        self._used[key] = next(self._clock)
        oldest = sorted(self, key=lambda each: self._used.get(each, -1))
        size = sum(_bytes_of(value) for value in list(self.values()))
        while len(oldest) > 1 and (len(oldest) > self._capacity or size > self._most_bytes):
            size -= _bytes_of(self.pop(oldest.pop(0), None))
        self._used = {each: self._used.get(each, -1) for each in oldest}
        return found


def _bytes_of(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_bytes_of, value))
    found: int = getattr(value, "nbytes", 0)
    return found
