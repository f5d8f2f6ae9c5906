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
from cotswold.data.layout import Chunk
from cotswold.data.manifest import FOLDER, disk_full_named
from cotswold.data.picture import BrokenPictureError, Pixels
from cotswold.data.preparation import Preparation, Transform, spectra
from cotswold.data.source import Source
from cotswold.data.whitening import Float32
from cotswold.files import open_file, open_reading

Broken = dict[int, str]
"""Why a picture could not be read, by its position in the shard."""


@dataclass(frozen=True)
class Shard:
    """Pictures of one split that lie in one file: rows ``start ...`` hold the pictures ``pictures`` of the
    source."""

    split: str
    number: int
    start: int
    room: int
    """Pictures that the file has room for; the last one of a split may hold fewer."""
    pictures: tuple[int, ...]

    @property
    def key(self) -> str:
        """The shard's file, relative to the store."""
        return layout.shard_key(self.split, self.number)

    def pixels(self, store: Path) -> Path:
        """Where its decoded pixels wait for the transform."""
        return store / FOLDER / f"{self.split}-{self.number}.pixels"


class Worker:
    """Decodes and writes shards; one a process."""

    def __init__(self, source: Source, store: Path, preparation: Preparation) -> None:
        self._source, self._store, self._plain = source, store, Transform(preparation)

    def look(self, shard: Shard) -> tuple[Float32, Broken]:
        """The spectra of the readable pictures of a shard; its pixels are kept until it is written."""
        pixels, broken = self._decoded(shard)
        with disk_full_named(self._store / shard.key):
            file = open_file(shard.pixels(self._store), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with os.fdopen(file, "wb") as kept:
                kept.write(pixels.data)
        return spectra(self._plain.preparation, np.delete(pixels, list(broken), axis=0)), broken

    def write(self, shard: Shard, transform: Transform, broken: Broken | None) -> tuple[Chunk, Broken]:
        """Write a shard, decoding it unless `look` did (``broken`` is what it found)."""
        if broken is None:
            pixels, broken = self._decoded(shard)
        else:
            pixels = kept_pixels(shard, self._store, self._plain.preparation)
        stored = transform.prepared(pixels)
        stored[list(broken)] = 0
        path = self._store / shard.key
        with disk_full_named(path):
            chunk = layout.write_shard(path, stored, shard.room)
        shard.pixels(self._store).unlink(missing_ok=True)
        return chunk, broken

    def _decoded(self, shard: Shard) -> tuple[Pixels, Broken]:
        """Pixels (image, y, x, channel), zeros where a picture is broken."""
        shape = self._plain.preparation.shape
        pixels = np.zeros((len(shard.pictures), shape.height, shape.width, shape.channels), np.uint8)
        broken: Broken = {}
        for position, index in enumerate(shard.pictures):
            try:
                pixels[position] = self._plain.pixels(self._source.name(index), self._source.read(index))
            except BrokenPictureError as error:
                broken[position] = str(error)
        return pixels, broken


def kept_pixels(shard: Shard, store: Path, preparation: Preparation) -> Pixels:
    """What `Worker.look` decoded: (image, y, x, channel)."""
    shape = preparation.shape
    with open_reading(shard.pixels(store)) as kept:
        values = np.frombuffer(kept.read(), np.uint8)
    return values.reshape(len(shard.pictures), shape.height, shape.width, shape.channels)


_worker: Worker | None = None  # a pool hands its processes their state in no other way


def begin(source: Source, store: Path, preparation: Preparation) -> None:
    """Set a process of the pool up; it ends when its parent does, however that ends."""
    global _worker
    _worker = Worker(source, store, preparation)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(parent: int) -> None:
    wait([parent])
    os._exit(1)


def look(shard: Shard) -> tuple[Float32, Broken]:
    """`Worker.look` in a process of the pool."""
    assert _worker is not None
    return _worker.look(shard)


def write(shard: Shard, transform: Transform, broken: Broken | None) -> tuple[Chunk, Broken]:
    """`Worker.write` in a process of the pool."""
    assert _worker is not None
    return _worker.write(shard, transform, broken)
