"""A least-recently-used cache of shards in memory, of bounded size.

Knows: shards by kind and number, their bytes, threads. Does not know: stores, the contents of samples.

Shards of one kind share one array, in which each has a slot of whole pages. So the rows of a batch are
gathered in one step, across shards. A slot takes memory only from its filling to its release.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.loading.order import Rows
from cotswold.errors import MachineError
from cotswold.geometry import Box
from cotswold.host.memory import NO_RESERVE

Array = NDArray[Any]
Read = Callable[[int, int], Array]
"""Returns the rows from start to before stop."""

_NEVER = np.iinfo(np.int64).max
"""Time of use for a slot that is vacant or being filled; such a slot is not evicted."""


@dataclass(frozen=True)
class Shards:
    """All shards of one kind: the window ``box`` of the samples of a split, ``size`` samples per shard."""

    split: str
    box: Box | None
    samples: int
    size: int
    shape: tuple[int, ...]
    """Shape of a cached sample."""
    dtype: str

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def count(self) -> int:
        """Number of shards."""
        return -(-self.samples // self.size)

    @property
    def max_samples(self) -> int:
        """Maximum number of samples in a shard."""
        return min(self.size, self.samples)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a shard in a cache."""
        return -(-self.max_samples * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class ShardCache:
    """At most ``bound_bytes`` of shards; thread-safe.

    Memory is freed before a shard is read, so the bound holds at all times. A shard larger than the bound is
    read without being cached. If several threads need a shard, it is read once.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.bytes = self.peak_bytes = 0
        """Bytes that are cached or reserved, and their peak."""
        self.hits = self.misses = 0
        """Rows found in the cache, and rows of shards that had to be read."""
        self._arenas: dict[Shards, _Arena] = {}
        self._reading: dict[tuple[Shards, int], threading.Event] = {}
        self._lock = threading.Lock()
        self._clock = 0

    def rows(self, shards: Shards, rows: Rows, read: Read) -> Array:
        """Return rows in the given order, ``(row, *shape)``.

        Exceptions of ``read`` pass through. Raises MachineError if no memory is available.
        """
        if not shards.row_bytes:
            return np.empty((len(rows), *shards.shape), shards.dtype)
        numbers, places = np.divmod(rows, shards.size)
        there = self._cached_rows(shards, numbers, places)
        if there is not None:
            return there
        found = np.empty((len(rows), *shards.shape), shards.dtype)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            found[at] = self._read_rows(shards, number, places[at], read)
        return found

    def _cached_rows(self, shards: Shards, numbers: Rows, places: Rows) -> Array | None:
        """Return the rows at some places of some shards if all are cached, else None."""
        with self._lock:
            arena = self._arenas.get(shards)
            found = None if arena is None else arena.take(numbers, places, self._tick())
            if found is not None:
                self.hits += len(places)
        return found

    def _read_rows(self, shards: Shards, number: int, places: Rows, read: Read) -> Array:
        """Return the rows at some places of one shard."""
        numbers = np.full(len(places), number)
        while (found := self._cached_rows(shards, numbers, places)) is None:
            with self._lock:
                reading = self._reading.get((shards, number))
                if reading is None and not self._is_cached(shards, number):
                    self.misses += len(places)
                    place = self._reserve(shards, number)
                    break
            if reading is not None:
                reading.wait()  # then check again: the read may have failed or the shard been evicted
        if found is not None:
            return found
        start = number * shards.size
        stop = min(start + shards.size, shards.samples)
        if place is None:
            return read(start, stop)[places]
        arena, slot = place
        is_filled = False
        try:
            samples = read(start, stop)
            arena.fill(slot, samples)
            is_filled = True
        finally:
            with self._lock:
                if is_filled:
                    arena.occupy(slot, number, self._tick())
                else:
                    self._free(arena, slot)
                self._reading.pop((shards, number)).set()
        return samples[places]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _is_cached(self, shards: Shards, number: int) -> bool:
        arena = self._arenas.get(shards)
        return arena is not None and arena.contains(number)

    def _reserve(self, shards: Shards, number: int) -> tuple[_Arena, int] | None:
        """Reserve a slot for a shard and announce its reading to other threads.

        The least recently used shards are evicted until the shard fits. None if it cannot fit.
        """
        wanted = shards.slot_bytes
        if wanted > self.bound_bytes:
            return None
        while self.bytes + wanted > self.bound_bytes:
            oldest = min(self._arenas.values(), key=lambda arena: arena.oldest)
            if oldest.oldest == _NEVER:  # the rest is being read
                return None
            self._free(oldest, oldest.forget())
        arena = self._arenas.get(shards)
        if arena is None:
            arena = self._arenas[shards] = _Arena(shards, min(shards.count, self.bound_bytes // wanted))
        self.bytes += wanted
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        self._reading[shards, number] = threading.Event()
        return arena, arena.reserve()

    def _free(self, arena: _Arena, slot: int) -> None:
        """Free a slot; forget a kind without cached shards."""
        self.bytes -= arena.shards.slot_bytes
        arena.free(slot)
        if arena.is_empty:
            del self._arenas[arena.shards]


class _Arena:
    """Shards of one kind in one array."""

    def __init__(self, shards: Shards, slots: int) -> None:
        self.shards = shards
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
            self._memory = mmap.mmap(-1, slots * shards.slot_bytes, flags=flags)
        except OSError as error:
            raise MachineError(
                f"no memory for a cache of {slots * shards.slot_bytes} bytes ({error.strerror}); give data "
                "servers a smaller one"
            ) from error
        self._row = np.dtype((np.void, shards.row_bytes))
        strides = shards.slot_bytes, shards.row_bytes
        self._rows = np.ndarray((slots, shards.max_samples), self._row, self._memory, strides=strides)
        self._slots = np.full(shards.count, -1)
        """Slot of each shard, -1 if not cached."""
        self._numbers = np.full(slots, -1)
        """Shard in each slot, -1 if vacant."""
        self._used = np.full(slots, _NEVER)
        self._vacant: list[int] = [*range(slots)]

    @property
    def is_empty(self) -> bool:
        """True if no slot is filled or reserved."""
        return len(self._vacant) == len(self._used)

    @property
    def oldest(self) -> int:
        """Time of the last use of the least recently used shard."""
        return int(self._used.min())

    def contains(self, number: int) -> bool:
        """True if a shard is cached."""
        return bool(self._slots[number] >= 0)

    def take(self, numbers: Rows, places: Rows, now: int) -> Array | None:
        """Return the rows at some places of some shards; None if a shard is not cached."""
        slots = self._slots[numbers]
        if slots.min() < 0:
            return None
        self._used[slots] = now
        rows: Array = self._rows[slots, places].view(self.shards.dtype)
        return rows.reshape(len(places), *self.shards.shape)

    def reserve(self) -> int:
        """Return a vacant slot, now reserved."""
        return self._vacant.pop()

    def fill(self, slot: int, samples: Array) -> None:
        """Copy samples into a reserved slot."""
        rows = np.ascontiguousarray(samples).reshape(len(samples), -1).view(self._row)
        self._rows[slot, : len(rows)] = rows[:, 0]

    def occupy(self, slot: int, number: int, now: int) -> None:
        """Record that a slot now contains a shard."""
        self._slots[number], self._numbers[slot], self._used[slot] = slot, number, now

    def forget(self) -> int:
        """Forget the least recently used shard and return its slot."""
        slot = int(self._used.argmin())
        self._slots[self._numbers[slot]] = -1
        self._used[slot] = _NEVER
        return slot

    def free(self, slot: int) -> None:
        """Mark a slot vacant and release its memory."""
        self._vacant.append(slot)
        self._memory.madvise(mmap.MADV_DONTNEED, slot * self.shards.slot_bytes, self.shards.slot_bytes)
