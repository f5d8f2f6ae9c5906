"""Shards in memory, within a bound: those that were used last stay.

Knows: shards by kind and number, their bytes, threads. Does not know: stores, what is in a sample.

Shards of one kind lie in one array, each in a slot of whole pages, so that the rows of a batch are gathered
at once, from whatever shards they are. A slot takes memory from when it is filled until it is let go.
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
"""Rows from start to before stop."""

_NEVER = np.iinfo(np.int64).max
"""When a slot was used that is vacant or being filled: it is not let go."""


@dataclass(frozen=True)
class Shards:
    """All shards of one kind: the window ``box`` of samples of a split, ``size`` in a shard."""

    split: str
    box: Box | None
    samples: int
    size: int
    shape: tuple[int, ...]
    """Of what is kept of a sample."""
    dtype: str

    @cached_property
    def row_bytes(self) -> int:
        """Of a sample."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def count(self) -> int:
        """How many shards there are."""
        return -(-self.samples // self.size)

    @property
    def most(self) -> int:
        """Samples of a shard, at most."""
        return min(self.size, self.samples)

    @property
    def slot_bytes(self) -> int:
        """What a shard takes in a cache."""
        return -(-self.most * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class ShardCache:
    """At most ``bound_bytes`` of shards; several threads may use it.

    Room is made before a shard is read, so the bound holds at every time. What is larger than the bound is
    read and not kept. A shard that several threads want is read once.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.bytes = self.bytes_most = 0
        """What is kept, or read to be kept; the most there ever was."""
        self.hits = self.misses = 0
        """Rows that were there, and rows of shards that were read."""
        self._arenas: dict[Shards, _Arena] = {}
        self._reading: dict[tuple[Shards, int], threading.Event] = {}
        self._lock = threading.Lock()
        self._clock = 0

    def rows(self, shards: Shards, rows: Rows, read: Read) -> Array:
        """Rows in their order, ``(row, *shape)``; raises what ``read`` raises, MachineError where there is no
        memory."""
        if not shards.row_bytes:
            return np.empty((len(rows), *shards.shape), shards.dtype)
        numbers, places = np.divmod(rows, shards.size)
        there = self._there(shards, numbers, places)
        if there is not None:
            return there
        found = np.empty((len(rows), *shards.shape), shards.dtype)
        for number in np.unique(numbers).tolist():
            at = np.flatnonzero(numbers == number)
            found[at] = self._of_shard(shards, number, places[at], read)
        return found

    def _there(self, shards: Shards, numbers: Rows, places: Rows) -> Array | None:
        """The rows at some places of some shards, where all are there."""
        with self._lock:
            arena = self._arenas.get(shards)
            found = None if arena is None else arena.taken(numbers, places, self._tick())
            if found is not None:
                self.hits += len(places)
        return found

    def _of_shard(self, shards: Shards, number: int, places: Rows, read: Read) -> Array:
        """The rows at some places of one shard."""
        numbers = np.full(len(places), number)
        while (found := self._there(shards, numbers, places)) is None:
            with self._lock:
                reading = self._reading.get((shards, number))
                if reading is None and not self._has(shards, number):
                    self.misses += len(places)
                    place = self._reserved(shards, number)
                    break
            if reading is not None:
                reading.wait()  # and look again: it may have failed, or be gone already
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
                    arena.keep(slot, number, self._tick())
                else:
                    self._let_go(arena, slot)
                self._reading.pop((shards, number)).set()
        return samples[places]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _has(self, shards: Shards, number: int) -> bool:
        arena = self._arenas.get(shards)
        return arena is not None and arena.has(number)

    def _reserved(self, shards: Shards, number: int) -> tuple[_Arena, int] | None:
        """A slot for a shard, whose reading others wait for from now on: what was used longest ago is let go
        until it fits. None where it never would."""
        wanted = shards.slot_bytes
        if wanted > self.bound_bytes:
            return None
        while self.bytes + wanted > self.bound_bytes:
            oldest = min(self._arenas.values(), key=lambda arena: arena.oldest)
            if oldest.oldest == _NEVER:  # the rest is being read
                return None
            self._let_go(oldest, oldest.forget())
        arena = self._arenas.get(shards)
        if arena is None:
            arena = self._arenas[shards] = _Arena(shards, min(shards.count, self.bound_bytes // wanted))
        self.bytes += wanted
        self.bytes_most = max(self.bytes_most, self.bytes)
        self._reading[shards, number] = threading.Event()
        return arena, arena.reserve()

    def _let_go(self, arena: _Arena, slot: int) -> None:
        """A slot has nothing; a kind of which nothing is kept is forgotten."""
        self.bytes -= arena.shards.slot_bytes
        arena.vacate(slot)
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
        self._rows = np.ndarray((slots, shards.most), self._row, self._memory, strides=strides)
        self._slots = np.full(shards.count, -1)
        """By number of shard."""
        self._numbers = np.full(slots, -1)
        """By slot."""
        self._used = np.full(slots, _NEVER)
        self._vacant: list[int] = [*range(slots)]

    @property
    def is_empty(self) -> bool:
        """Whether no slot is filled or being filled."""
        return len(self._vacant) == len(self._used)

    @property
    def oldest(self) -> int:
        """When the shard was used that was used longest ago."""
        return int(self._used.min())

    def has(self, number: int) -> bool:
        """Whether a shard is there."""
        return bool(self._slots[number] >= 0)

    def taken(self, numbers: Rows, places: Rows, now: int) -> Array | None:
        """The rows at some places of some shards; None where one of these is not there."""
        slots = self._slots[numbers]
        if slots.min() < 0:
            return None
        self._used[slots] = now
        rows: Array = self._rows[slots, places].view(self.shards.dtype)
        return rows.reshape(len(places), *self.shards.shape)

    def reserve(self) -> int:
        """A slot to fill."""
        return self._vacant.pop()

    def fill(self, slot: int, samples: Array) -> None:
        """Put samples into a slot that is reserved."""
        rows = np.ascontiguousarray(samples).reshape(len(samples), -1).view(self._row)
        self._rows[slot, : len(rows)] = rows[:, 0]

    def keep(self, slot: int, number: int, now: int) -> None:
        """A slot has a shard."""
        self._slots[number], self._numbers[slot], self._used[slot] = slot, number, now

    def forget(self) -> int:
        """The slot of the shard that was used longest ago, which is not there any more."""
        slot = int(self._used.argmin())
        self._slots[self._numbers[slot]] = -1
        self._used[slot] = _NEVER
        return slot

    def vacate(self, slot: int) -> None:
        """A slot has nothing, and takes no memory."""
        self._vacant.append(slot)
        self._memory.madvise(mmap.MADV_DONTNEED, slot * self.shards.slot_bytes, self.shards.slot_bytes)
