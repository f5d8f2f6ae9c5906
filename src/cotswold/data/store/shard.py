"""The shards of a store, and the interface of the work on them.

Knows: positions of samples, calls by pools. Does not know: images, vectors, processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cotswold.data.store import layout as store_layout
from cotswold.data.store.layout import Chunk, ShardSize
from cotswold.data.store.manifest import FOLDER
from cotswold.errors import SourceError

BrokenSamples = dict[int, str]
"""Reasons for unreadable samples, by position in the shard."""

SeenT = TypeVar("SeenT")
Seen_co = TypeVar("Seen_co", covariant=True)
TransformT = TypeVar("TransformT")


@dataclass(frozen=True, eq=False)
class StoreShard:
    """Samples of one split in one file: rows from ``start`` hold the samples ``samples`` of the source."""

    split: str
    number: int
    start: int
    capacity: ShardSize
    """Capacity of the file in samples; the last shard of a split may hold fewer."""
    samples: NDArray[np.int64]

    @property
    def key(self) -> str:
        """Path of the shard's file, relative to the store."""
        return store_layout.shard_key(self.split, self.number)

    def cache_path(self, store: Path) -> Path:
        """Return the path where decoded samples may wait for the transform."""
        return store / FOLDER / f"{self.split}-{self.number}.pixels"


class ShardWork(Protocol[SeenT, TransformT]):
    """Processing of the shards of one kind of data: look at them to estimate a transform, then write them.

    Instances are cheap to pickle; every process of a pool has one.
    """

    def measure(self, shard: StoreShard) -> tuple[SeenT, BrokenSamples]:
        """Return the statistics of a shard for the estimate, and its broken samples."""

    def write(
        self, shard: StoreShard, transform: TransformT, broken: BrokenSamples | None
    ) -> tuple[Chunk, BrokenSamples]:
        """Write a shard; ``broken`` is the result of `measure`, None without it."""

    def estimated(
        self, shards: list[StoreShard], pool: MeasuringPool[SeenT]
    ) -> tuple[TransformT, dict[str, BrokenSamples]]:
        """Estimate the transform from training shards; also return the broken samples of the shards read.

        Raises NothingReadableError.
        """


class MeasuringPool(Protocol[Seen_co]):
    """The part of a pool that an estimate uses."""

    def measure(
        self, shards: Iterable[StoreShard]
    ) -> Iterator[tuple[StoreShard, tuple[Seen_co, BrokenSamples]]]:
        """Look at shards, in order; the iterator may be abandoned early."""


class NothingReadableError(SourceError):
    """Raised if every training sample is broken; the unfinished store may then be deleted."""


def unreadable_shard_error(broken: BrokenSamples) -> NothingReadableError:
    """Return the error for the broken samples of a training shard."""
    first = next(iter(broken.values()))
    return NothingReadableError(f"no training image can be read (the first: {first}); give readable images")
