"""What one shard of a store is, and the work that each kind of data has on it.

Knows: positions of samples, what pools call. Does not know: pictures, vectors, processes.
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

Broken = dict[int, str]
"""Why a sample could not be read, by its position in the shard."""

SeenT = TypeVar("SeenT")
Seen_co = TypeVar("Seen_co", covariant=True)
TransformT = TypeVar("TransformT")


@dataclass(frozen=True, eq=False)
class Shard:
    """Samples of one split that lie in one file: rows ``start ...`` hold the samples ``samples`` of the
    source."""

    split: str
    number: int
    start: int
    room: ShardSize
    """Samples that the file has room for; the last one of a split may hold fewer."""
    samples: NDArray[np.int64]

    @property
    def key(self) -> str:
        """The shard's file, relative to the store."""
        return store_layout.shard_key(self.split, self.number)

    def kept(self, store: Path) -> Path:
        """Where its decoded samples may wait for the transform."""
        return store / FOLDER / f"{self.split}-{self.number}.pixels"


class ShardWork(Protocol[SeenT, TransformT]):
    """What a kind of data has done to shards: looked at, so that a transform is estimated, then written.

    Cheap to pickle; every process of a pool has one.
    """

    def look(self, shard: Shard) -> tuple[SeenT, Broken]:
        """What the estimate needs to know of a shard, and what is broken in it."""

    def write(self, shard: Shard, transform: TransformT, broken: Broken | None) -> tuple[Chunk, Broken]:
        """Write a shard; ``broken`` is what `look` found, None where it did not look."""

    def estimated(self, shards: list[Shard], pool: Looking[SeenT]) -> tuple[TransformT, dict[str, Broken]]:
        """The transform of the training shards, and what is broken in those that were looked at. Raises
        NothingReadableError."""


class Looking(Protocol[Seen_co]):
    """A pool, as far as an estimate needs it."""

    def look(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, tuple[Seen_co, Broken]]]:
        """Look at shards, in order; may be left early."""


class NothingReadableError(SourceError):
    """Every sample for training is broken, so that nothing is lost with the unfinished store."""


def nothing_readable(broken: Broken) -> NothingReadableError:
    """That it is so; ``broken``: of a shard of training samples."""
    first = next(iter(broken.values()))
    return NothingReadableError(
        f"not one picture for training can be read (the first: {first}); give readable ones"
    )
