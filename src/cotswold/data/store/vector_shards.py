"""Work on shards of vectors: compute moments of the training split, then standardise and write.

Knows: a source, a preparation. Does not know: other shards, the request.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path

import numpy as np

from cotswold.data.preprocessing.table_statistics import estimate_table
from cotswold.data.preprocessing.vectors import Moments, VectorPreparation, VectorTransform, standardising
from cotswold.data.sources.vectors import VectorSource
from cotswold.data.store import layout as store_layout
from cotswold.data.store.layout import Chunk
from cotswold.data.store.manifest import disk_full_named
from cotswold.data.store.shard import BrokenSamples, MeasuringPool, StoreShard
from cotswold.errors import SourceError


class VectorWork:
    """Reads and writes shards of vectors, frames or rows of tables.

    No sample is broken: an infinite or NaN value is an error.
    """

    def __init__(self, source: VectorSource, store: Path, preparation: VectorPreparation) -> None:
        self._source, self._store, self._preparation = source, store, preparation

    def measure(self, shard: StoreShard) -> tuple[Moments, BrokenSamples]:
        """Return the moments of a shard."""
        with np.errstate(over="ignore", invalid="ignore"):  # `estimated` reports it
            return Moments.of(self._source.rows(shard.samples)), {}

    def write(
        self, shard: StoreShard, transform: VectorTransform, broken: BrokenSamples | None
    ) -> tuple[Chunk, BrokenSamples]:
        """Write a shard. Raises SourceError for a number outside the range of the store's dtype."""
        stored = transform.stored(transform.values(self._source.rows(shard.samples)))
        beyond = np.flatnonzero(~np.isfinite(stored).all((1, 2, 3)))
        if len(beyond):
            standardise = "" if self._preparation.standardise else "standardise, or "
            float32 = " or use dtype float32" if self._preparation.dtype == "float16" else ""
            raise SourceError(
                f"{self._source.name(int(shard.samples[beyond[0]]))} has a number that is too large for "
                f"{self._preparation.dtype}; {standardise}scale it{float32}"
            )
        path = self._store / shard.key
        with disk_full_named(path):
            return store_layout.write_shard(path, stored, shard.capacity), {}

    def estimated(
        self, shards: list[StoreShard], pool: MeasuringPool[Moments]
    ) -> tuple[VectorTransform, dict[str, BrokenSamples]]:
        """Estimate the transform from all training rows, merged in the order of the shards."""
        if not self._preparation.needs_sample:
            return VectorTransform(self._preparation), {}
        if self._preparation.table is not None:
            return estimate_table(
                self._preparation, lambda: (self._source.rows(shard.samples) for shard in shards)
            ), {}
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            moments = reduce(or_, (seen for _, (seen, _) in pool.measure(shards)))
        wrong = np.flatnonzero(~moments.is_exact)
        if len(wrong):
            feature = int(wrong[0])
            low, high = moments.low[feature], moments.high[feature]
            raise SourceError(
                f"feature {feature} has numbers from {low:.3g} to {high:.3g}, whose standard deviation "
                "exceeds the range of float64; scale this feature"
            )
        return standardising(self._preparation, moments), {}
