"""Work on shards of images: decode, estimate the whitening from a subset, transform, write.

Knows: a source, a preparation, decoded pixels cached in the store. Does not know: other shards, the request.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from cotswold.data.formats.image import BrokenImageError, Pixels
from cotswold.data.preprocessing.images import (
    Preparation,
    Transform,
    estimate,
    spectra,
    unestimated_transform,
)
from cotswold.data.preprocessing.whitening import Float32
from cotswold.data.sources.base import Source
from cotswold.data.sources.checks import read_image
from cotswold.data.store import layout as store_layout
from cotswold.data.store.layout import Chunk
from cotswold.data.store.manifest import disk_full_named
from cotswold.data.store.shard import BrokenSamples, MeasuringPool, StoreShard, unreadable_shard_error
from cotswold.files import open_file, open_reading

_SAMPLE_IMAGES = 5000
"""Maximum number of images from which whitening is estimated.

With 1,500 of Caltech-101, the colours of validation images still correlate by 0.068, with 4,000 by 0.050,
with 5,000 by 0.046.
"""
_SAMPLE_BYTES = 1 << 30
"""Maximum size of their decoded pixels, which are cached on disk until they are written."""


class ImageWork:
    """Decodes and writes shards of images."""

    def __init__(self, source: Source, store: Path, preparation: Preparation) -> None:
        self._source, self._store, self._unestimated_transform = source, store, Transform(preparation)

    def measure(self, shard: StoreShard) -> tuple[Float32, BrokenSamples]:
        """Return the spectra of the readable images of a shard; cache its pixels until `write`."""
        pixels, broken = self._decoded(shard)
        with disk_full_named(self._store / shard.key):
            file = open_file(shard.cache_path(self._store), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(file, "wb") as kept:
                kept.write(pixels.data)
        return spectra(
            self._unestimated_transform.preparation, np.delete(pixels, list(broken), axis=0)
        ), broken

    def write(
        self, shard: StoreShard, transform: Transform, broken: BrokenSamples | None
    ) -> tuple[Chunk, BrokenSamples]:
        """Write a shard; decode it unless `measure` did, in which case ``broken`` is its result."""
        if broken is None:
            pixels, broken = self._decoded(shard)
        else:
            pixels = self._cached_pixels(shard)
        stored = transform.prepared(pixels)
        stored[list(broken)] = 0
        path = self._store / shard.key
        with disk_full_named(path):
            chunk = store_layout.write_shard(path, stored, shard.capacity)
        shard.cache_path(self._store).unlink(missing_ok=True)
        return chunk, broken

    def estimated(
        self, shards: list[StoreShard], pool: MeasuringPool[Float32]
    ) -> tuple[Transform, dict[str, BrokenSamples]]:
        """Estimate the transform from the first training images; also return the broken images of their
        shards.
        """
        preparation, ranges = self._unestimated_transform.preparation, self._source.ranges
        if not preparation.needs_sample:
            return replace(unestimated_transform(preparation), ranges=ranges), {}
        enough = max(1, min(_SAMPLE_IMAGES, _SAMPLE_BYTES // preparation.shape.size))
        looked: dict[str, BrokenSamples] = {}
        sample: list[Float32] = []
        some: Pixels | None = None
        for shard, (seen, broken) in pool.measure(shards):
            looked[shard.key] = broken
            sample.append(seen)
            if some is None and len(seen):
                some = np.delete(self._cached_pixels(shard), list(broken), axis=0)
            if sum(map(len, sample)) >= enough:
                break
        if some is None:
            raise unreadable_shard_error(next(iter(looked.values())))
        return replace(estimate(preparation, np.concatenate(sample), some), ranges=ranges), looked

    def _decoded(self, shard: StoreShard) -> tuple[Pixels, BrokenSamples]:
        """Return pixels (image, y, x, channel), zeros for broken images."""
        shape = self._unestimated_transform.preparation.shape
        pixels = np.zeros((len(shard.samples), shape.height, shape.width, shape.channels), np.uint8)
        broken: BrokenSamples = {}
        for position, index in enumerate(shard.samples.tolist()):
            try:
                pixels[position] = self._unestimated_transform.pixels(*read_image(self._source, index))
            except BrokenImageError as error:
                broken[position] = str(error)
        return pixels, broken

    def _cached_pixels(self, shard: StoreShard) -> Pixels:
        """Return the pixels cached by `measure`: (image, y, x, channel)."""
        shape = self._unestimated_transform.preparation.shape
        with open_reading(shard.cache_path(self._store)) as kept:
            values = np.frombuffer(kept.read(), np.uint8)
        return values.reshape(len(shard.samples), shape.height, shape.width, shape.channels)
