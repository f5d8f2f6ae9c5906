"""In what order a reader hands out the pictures of a split.

Knows: integers and seeds. Does not know: stores, threads.

Shards are shuffled and taken together in groups that fit a buffer; inside a group pictures are shuffled.
Since `prepare` has permuted the pictures once, that is as good as shuffling all of them. The order is a
function of (seed, epoch) alone, so that a reader can begin anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Group:
    """Pictures that are read together: ``ranges`` of rows of the split, handed out in ``order`` of the rows
    read."""

    ranges: tuple[tuple[int, int], ...]
    order: NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """``pictures`` in shards of ``shard``; a group holds ``buffer`` pictures or one shard, whichever is
    more."""

    pictures: int
    shard: int
    buffer: int
    seed: int
    shuffle: bool = True

    @property
    def shards(self) -> int:
        """How many shards there are; the last may be short."""
        return -(-self.pictures // self.shard)

    def epoch(self, epoch: int) -> list[Group]:
        """The groups of one epoch."""
        shards = np.arange(self.shards)
        if self.shuffle:
            np.random.default_rng((self.seed, epoch, 0)).shuffle(shards)
        together = max(1, self.buffer // self.shard)
        return [
            self._group(shards[first : first + together], epoch, first)
            for first in range(0, len(shards), together)
        ]

    def _group(self, shards: NDArray[np.int64], epoch: int, first: int) -> Group:
        ranges = tuple((int(s) * self.shard, min((int(s) + 1) * self.shard, self.pictures)) for s in shards)
        order = np.arange(sum(stop - start for start, stop in ranges))
        if self.shuffle:
            np.random.default_rng((self.seed, epoch, 1, first)).shuffle(order)
        return Group(ranges, order)
