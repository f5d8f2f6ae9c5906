"""The work of one process of `prepare`: decode the pictures of one shard, work on them, write them.

Knows: a source, a transform, one zarr array. Does not know: the other shards, what was asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from PIL import Image

from cotswold.data import layout
from cotswold.data.manifest import Chunk, chunk_of, disk_full_named
from cotswold.data.picture import BrokenPictureError, Pixels
from cotswold.data.preparation import Transform
from cotswold.data.source import Source

Broken = dict[int, str]
"""Why a picture could not be read, by its position in the shard."""


@dataclass(frozen=True)
class Shard:
    """Pictures of one split that lie in one file: rows ``start ...`` hold the pictures ``pictures`` of the source."""

    split: str
    number: int
    start: int
    pictures: tuple[int, ...]

    @property
    def key(self) -> str:
        """The shard's file, relative to the store."""
        return layout.shard_key(self.split, self.number)


@dataclass(frozen=True)
class Decoded:
    """Pixels (image, y, x, channel) of a shard, zeros where a picture is broken."""

    pixels: Pixels
    broken: Broken


class Worker:
    """Decodes and writes shards; one a process."""

    def __init__(self, source: Source, store: Path) -> None:
        self._source, self._store = source, store

    def decode(self, shard: Shard, plain: Transform) -> Decoded:
        """The pixels of a shard, before its numbers are worked on."""
        shape = plain.preparation.shape
        pixels = np.zeros((len(shard.pictures), shape.height, shape.width, shape.channels), np.uint8)
        broken: Broken = {}
        for position, index in enumerate(shard.pictures):
            try:
                pixels[position] = plain.pixels(self._source.name(index), self._source.read(index))
            except BrokenPictureError as error:
                broken[position] = str(error)
        return Decoded(pixels, broken)

    def write(self, shard: Shard, transform: Transform, decoded: Decoded | None) -> tuple[Chunk, Broken]:
        """Write a shard, decoding it first unless that is done; returns what the manifest says of it."""
        decoded = decoded or self.decode(shard, transform)
        stored = transform.stored(transform.values(decoded.pixels))
        stored[list(decoded.broken)] = 0
        path = self._store / shard.key
        with disk_full_named(path):
            array = layout.opened(self._store / shard.split / layout.PICTURES, "r+")
            array[shard.start : shard.start + len(stored)] = stored
        return chunk_of(path), decoded.broken


_worker: Worker | None = None  # a pool hands its processes their state in no other way


def begin(source: Source, store: Path) -> None:
    """Set a process of the pool up; it ends when its parent does, however that ends."""
    global _worker
    _worker = Worker(source, store)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    wait([parent])
    os._exit(1)


def decode(shard: Shard, plain: Transform) -> Decoded:
    """`Worker.decode` in a process of the pool."""
    assert _worker is not None
    return _worker.decode(shard, plain)


def write(shard: Shard, transform: Transform, decoded: Decoded | None) -> tuple[Chunk, Broken]:
    """`Worker.write` in a process of the pool."""
    assert _worker is not None
    return _worker.write(shard, transform, decoded)
