"""Decoding and resizing of a source's images by Pillow alone.

Knows: a source, processes. Does not know: preparation, stores. It imports little, because every process that
starts imports it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from PIL import Image

from cotswold.data.sources.base import Source

_CHUNK = 64
_source: Source
_size: tuple[int, int]


def pillow_alone(source: Source, size: tuple[int, int], jobs: int, count: int) -> int:
    """Decode the first ``count`` images to ``size`` (height, width); return the number of readable images."""
    chunks = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    if jobs == 1:
        _begin(source, size)
        return sum(map(_resized, chunks))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=_begin, initargs=(source, size)) as pool:
        return sum(pool.map(_resized, chunks))


def _begin(source: Source, size: tuple[int, int]) -> None:
    global _source, _size
    _source, _size = source, size


def _resized(indices: Sequence[int]) -> int:
    return sum(_one(index, *_size) for index in indices)


def _one(index: int, height: int, width: int) -> bool:
    """Draft and resize to the whole size with a centre crop, as `prepare` does."""
    try:
        with _source.read(index) as image:
            image.draft("RGB", (width, height))
            colours = image.convert("RGB")
            across, down = colours.size
            scale = max(height / down, width / across)
            x, y = (across - width / scale) / 2, (down - height / scale) / 2
            box = (max(x, 0.0), max(y, 0.0), min(across - x, across), min(down - y, down))
            colours.resize((width, height), Image.Resampling.BICUBIC, box=box)
    except Exception:  # decoders raise every kind of exception for damaged files; `prepare` counts them
        return False
    return True
