"""A tensor that is whole in address space, and in memory only where something was put.

Knows: anonymous memory, pages. Does not know: what is kept in it, files.
"""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from cotswold.host.memory import NO_RESERVE

PAGE = mmap.PAGESIZE


class Arena:
    """A tensor whose first dimension, its rows, comes and goes; rows that were dropped read as zeros."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.row_bytes = prod(shape[1:]) * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._map = mmap.mmap(-1, shape[0] * self.row_bytes, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)  # far fewer faults where rows are read anew all the time
        self.tensor: Tensor = torch.frombuffer(self._map, dtype=dtype).view(shape)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.tensor.shape[0]

    def place(self, row: int) -> int:
        """Where in its page a row begins."""
        return row * self.row_bytes % PAGE

    def values(self, row: int) -> memoryview:
        """The bytes of a row, to be read or written."""
        return memoryview(self._map)[row * self.row_bytes : (row + 1) * self.row_bytes]

    def drop(self, row: int) -> None:
        """Give the memory of a row back, but for pages that it shares with its neighbours."""
        first = -(-row * self.row_bytes // PAGE) * PAGE
        stop = (row + 1) * self.row_bytes // PAGE * PAGE
        if first < stop:
            self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)
