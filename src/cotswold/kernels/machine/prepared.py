"""A kernel that is ready to run: what is prepared once for a geometry, and run many times.

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
"""Bytes of a line of a cache, at which scratch begins."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class PreparedKernel:
    """Compiled code, its job but for the addresses of operands, and the threads that it is worth."""

    code: int
    """The address of ``work(job)``."""
    job: NDArray[np.int64]
    places: tuple[int, ...]
    """The fields of the job that operands' addresses go to, in the order in which `run` takes them."""
    scratch_place: int
    """The field that the address of scratch goes to."""
    scratch_bytes: int
    """Scratch of all threads."""
    threads: int
    held: object = None
    """What the job points at, kept as long as it."""

    def run(self, *addresses: int) -> None:
        """Run the kernel on operands at these addresses, which the caller keeps until then."""
        size = len(self.job)
        # a job of its own for each call: several threads of Python may run one kernel at a time
        job = (ctypes.c_int64 * size).from_buffer_copy(self.job.data)
        for place, address in zip(self.places, addresses, strict=True):
            job[place] = address
        scratch = None
        if self.scratch_bytes:
            scratch = torch.empty(self.scratch_bytes + LINE, dtype=torch.uint8, device="cpu")
            job[self.scratch_place] = -(-scratch.data_ptr() // LINE) * LINE
        threads.run(self.code, ctypes.addressof(job), self.threads)
        del scratch  # the kernel has used it until here


class Bounded(dict[K, V]):
    """The last values that were made, by what they depend on; at most so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, make: Callable[[], V]) -> V:
        """Make the value of a key and keep it; the oldest goes where there are too many."""
        found = self[key] = make()
        for oldest in list(self)[: -self._most]:
            self.pop(oldest, None)
        return found
