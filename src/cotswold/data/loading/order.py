"""In what order a reader hands out the samples of a split.

Knows: integers and seeds. Does not know: stores, threads.

An order says, for each epoch, in what order shards are read and in what order samples are handed out; it is
a function of (seed, epoch) alone, so that a reader can begin anywhere.

`Buffered`, what a reader uses: a shuffle buffer. Shards come in random order; whenever more than ``buffer``
samples wait, those beyond are drawn from all that wait. Two samples of one batch then come from one shard
with a probability near shard / (2 buffer), and those of one shard meet in a batch with one near
batch / (2 buffer). So two that met meet again in the next epoch with batch / samples, as after a full
shuffle, plus batch · shard / (4 buffer²): a quarter more where the buffer is the root of shard · samples,
twice as much where it is half of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

_LEAST_BYTES, _MOST_BYTES = 16 << 20, 512 << 20
"""Below the least, a buffer is too small to matter. The most mixes sets of up to 32 GiB as described above
and keeps below twice a full shuffle up to 128 GiB."""


def buffer_samples(samples: int, shard: int, sample_bytes: int) -> int:
    """Samples that wait in a shuffle buffer: the root of shard · samples, within 16 and 512 MiB."""
    root = math.isqrt(shard * samples - 1) + 1
    least, most = _LEAST_BYTES // sample_bytes, max(1, _MOST_BYTES // sample_bytes)
    return min(max(root, least), most, samples)


class Order(Protocol):
    """What a reader needs to know."""

    @property
    def name(self) -> str:
        """What the reader's state calls it."""

    @property
    def held(self) -> int:
        """Samples that wait between two reads of a shard, at most."""

    def shards(self, epoch: int) -> Rows:
        """The numbers of all shards, as they are read."""

    def rows(self, epoch: int) -> Rows:
        """The rows of all samples, as they are handed out."""


@dataclass(frozen=True)
class Split:
    """``samples`` in shards of ``shard``, of which the last may be short; ``shuffle`` as of the seed, or in
    the order of the store."""

    samples: int
    shard: int
    seed: int
    shuffle: bool = True

    def order(self, epoch: int) -> Rows:
        """The numbers of all shards."""
        shards = np.arange(-(-self.samples // self.shard))
        if self.shuffle:
            np.random.default_rng((self.seed, epoch, 0)).shuffle(shards)
        return shards

    def rows_of(self, shard: int) -> Rows:
        """The rows in one shard."""
        return np.arange(shard * self.shard, min((shard + 1) * self.shard, self.samples))


@dataclass(frozen=True)
class Buffered:
    """A shuffle buffer of ``buffer`` samples."""

    split: Split
    buffer: int
    name = "buffered"

    @property
    def held(self) -> int:
        """The buffer, or all."""
        return min(self.buffer, self.split.samples)

    def shards(self, epoch: int) -> Rows:
        """All shards, shuffled."""
        return self.split.order(epoch)

    def rows(self, epoch: int) -> Rows:
        """All rows, through the buffer."""
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
    """What a rank has of an epoch. ``is_even``: all have as many, and the rest is left out; otherwise they
    may differ by one."""
    samples = len(rows)
    if is_even and world_size > 1:
        each = samples // world_size
        return rows[rank * each : (rank + 1) * each]
    return rows[rank * samples // world_size : (rank + 1) * samples // world_size]


def part_of_worker(rows: Rows, unit: int, worker: int, workers: int) -> Rows:
    """What a worker of a DataLoader has of a rank's part: whole units, but for the last."""
    units = -(-len(rows) // unit)
    return rows[worker * units // workers * unit : (worker + 1) * units // workers * unit]
