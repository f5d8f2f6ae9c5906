"""A kernel that is ready to run: prepared once for a geometry, run many times.

Knows: that a job is a table of integers, scratch memory, threads. Does not know: what a kernel computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from cotswold.kernels.machine import threads

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
        threads.run(self.code, ctypes.addressof(job), self.threads)
        del scratch  # the kernel has used it until here


class FifoCache(dict[K, V]):
    """A cache of at most ``capacity`` values by key, in the order of their creation."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def put(self, key: K, make: Callable[[], V]) -> V:
        """Create the value of a key and store it; if there are too many values, remove the oldest."""
        found = self[key] = make()
        for oldest in list(self)[: -self._capacity]:
            self.pop(oldest, None)
        return found
