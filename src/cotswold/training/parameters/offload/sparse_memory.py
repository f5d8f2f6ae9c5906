"""A tensor with its whole range of addresses, whose memory is allocated only where data is written.

Knows: anonymous memory, pages. Does not know: the content, files.
"""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from cotswold.host.memory import NO_RESERVE

PAGE = mmap.PAGESIZE


class Arena:
    """A tensor whose rows (first dimension) can be dropped from memory; dropped rows read as zeros."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.row_bytes = prod(shape[1:]) * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._map = mmap.mmap(-1, shape[0] * self.row_bytes, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)  # far fewer page faults when rows are read repeatedly
        self.tensor: Tensor = torch.frombuffer(self._map, dtype=dtype).view(shape)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.tensor.shape[0]

    def row_offset(self, row: int) -> int:
        """Return the offset of a row within its page."""
        return row * self.row_bytes % PAGE

    def values(self, row: int) -> memoryview:
        """Return the bytes of a row, for reading or writing."""
        return memoryview(self._map)[row * self.row_bytes : (row + 1) * self.row_bytes]

    def drop(self, row: int) -> None:
        """Release the memory of a row, except for pages shared with its neighbours."""
        first = -(-row * self.row_bytes // PAGE) * PAGE
        stop = (row + 1) * self.row_bytes // PAGE * PAGE
        if first < stop:
            self._map.madvise(mmap.MADV_DONTNEED, first, stop - first)
