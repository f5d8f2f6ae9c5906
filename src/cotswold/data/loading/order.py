"""The order in which a reader returns the samples of a split.

Knows: integers and seeds. Does not know: stores, threads.

An order determines, for each epoch, the order in which shards are read and the order in which samples are
returned. It is a function of (seed, epoch), so a reader can start anywhere.

`Buffered`, which readers use, is a shuffle buffer. Shards are read in random order; whenever more than
``buffer`` samples wait, the excess is drawn at random from all waiting samples. Two samples of one batch come
from the same shard with probability near shard / (2 buffer); two samples of a shard share a batch with
probability near batch / (2 buffer). So two samples that shared a batch share one again in the next epoch with
probability batch / samples, as after a full shuffle, plus batch · shard / (4 buffer²): a quarter more if the
buffer is the square root of shard · samples, twice as much if it is half of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

_LEAST_BYTES, _MOST_BYTES = 16 << 20, 512 << 20
"""Bounds of the default shuffle buffer.

A smaller buffer would save no memory that matters. The upper bound mixes sets of up to 32 GiB as described
above, and stays below twice a full shuffle up to 128 GiB.
"""


def buffer_samples(samples: int, shard: int, sample_bytes: int) -> int:
    """Return the size of a shuffle buffer in samples: sqrt(shard · samples), within 16 and 512 MiB."""
    root = math.isqrt(shard * samples - 1) + 1
    least, most = _LEAST_BYTES // sample_bytes, max(1, _MOST_BYTES // sample_bytes)
    return min(max(root, least), most, samples)


class Order(Protocol):
    """The order of samples and shards, as a reader uses it."""

    @property
    def name(self) -> str:
        """Name of the order in the reader's state."""

    @property
    def max_waiting_samples(self) -> int:
        """Maximum number of samples that wait between two reads of a shard."""

    def shards(self, epoch: int) -> Rows:
        """Return the numbers of all shards in reading order."""

    def rows(self, epoch: int) -> Rows:
        """Return the rows of all samples in the order in which they are returned."""


@dataclass(frozen=True)
class Split:
    """``samples`` in shards of ``shard`` samples, the last possibly shorter.

    ``shuffle`` selects the order of ``seed`` or the stored order.
    """

    samples: int
    shard: int
    seed: int
    shuffle: bool = True

    def order(self, epoch: int) -> Rows:
        """Return the numbers of all shards in the order of an epoch."""
        shards = np.arange(-(-self.samples // self.shard))
        if self.shuffle:
            np.random.default_rng((self.seed, epoch, 0)).shuffle(shards)
        return shards

    def rows_of(self, shard: int) -> Rows:
        """Return the rows of one shard."""
        return np.arange(shard * self.shard, min((shard + 1) * self.shard, self.samples))


@dataclass(frozen=True)
class Buffered:
    """A shuffle buffer of ``buffer`` samples."""

    split: Split
    buffer: int
    name = "buffered"

    @property
    def max_waiting_samples(self) -> int:
        """The size of the buffer, or of the split if smaller."""
        return min(self.buffer, self.split.samples)

    def shards(self, epoch: int) -> Rows:
        """Return all shards, shuffled."""
        return self.split.order(epoch)

    def rows(self, epoch: int) -> Rows:
        """Return all rows, shuffled by the buffer."""
        if not self.split.shuffle:
            return np.arange(self.split.samples)
        random = np.random.default_rng((self.split.seed, epoch, 2))
        rows, waiting = np.empty(self.split.samples, np.int64), np.empty(0, np.int64)
        done = 0
        for shard in self.shards(epoch):
            waiting = np.concatenate([waiting, self.split.rows_of(int(shard))])
            beyond = max(0, len(waiting) - self.buffer)
            if beyond:
                random.shuffle(waiting)
                rows[done : done + beyond], waiting = waiting[:beyond], waiting[beyond:]
                done += beyond
        random.shuffle(waiting)
        rows[done:] = waiting
        return rows


def part_of_rank(rows: Rows, rank: int, world_size: int, *, is_even: bool) -> Rows:
    """Return a rank's part of an epoch.

    If ``is_even``, all parts have equal size and the remainder is left out; otherwise sizes may differ by
    one.
    """
    samples = len(rows)
    if is_even and world_size > 1:
        each = samples // world_size
        return rows[rank * each : (rank + 1) * each]
    return rows[rank * samples // world_size : (rank + 1) * samples // world_size]


def part_of_worker(rows: Rows, unit: int, worker: int, workers: int) -> Rows:
    """Return a DataLoader worker's part of a rank's rows: whole units, except the last."""
    units = -(-len(rows) // unit)
    return rows[worker * units // workers * unit : (worker + 1) * units // workers * unit]
