"""Sums of a worker in memory, and their parts for each server.

Knows: NumPy arrays, the ranges of shards. Does not know: portions, messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotswold.shards.runtime.arithmetic import Array, add, raw
from cotswold.wire import Shard


class ArraySums:
    """Flat arrays of the parameters' length, implementing `batch.core.partial_sums.SumArithmetic`."""

    def __init__(self, size: int, dtype: np.dtype[np.floating]) -> None:
        self._size, self._dtype = size, dtype
        self._of: dict[str, list[Shard]] = {}

    def set_shards(self, shards: Sequence[Shard]) -> None:
        """Set the servers' shards for later calls of `by_shard`."""
        self._of = {}
        for one in shards:
            self._of.setdefault(one.server, []).append(one)

    def zeros(self) -> Array:
        """Return a new sum of zeros."""
        return np.zeros(self._size, self._dtype)

    def add(self, left: Array, right: Array) -> Array:
        """Add in place: return the sum in the memory of ``left``."""
        add(left, right)
        return left

    def by_shard(self, values: Array, server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """Return the numbers of a server's shards, and their views of the sum."""
        shards = self._of.get(server, [])
        return tuple(one.number for one in shards), tuple(raw(values[one.start : one.stop]) for one in shards)
