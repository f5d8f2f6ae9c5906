"""Decoding and resizing of a source's images by Pillow alone.

Knows: a source, the processes that `prepare` uses, so that their start costs both the same. Does not know:
preparation, stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from cotswold.data.sources.base import Source
from cotswold.data.store.worker_pool import Workers

_CHUNK = 64

PillowWork = tuple[Source, int, int]
"""A source, and the height and width of the results."""


def pillow_alone(source: Source, size: tuple[int, int], jobs: int, count: int) -> int:
    """Decode the first ``count`` images to ``size`` (height, width); return the number of readable images."""
    chunks = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    work: PillowWork = (source, *size)
    with Workers(work, jobs) as pool:
        return sum(readable for _, readable in pool.map(_resized, chunks))


def _resized(work: PillowWork, indices: Sequence[int]) -> int:
    source, height, width = work
    return sum(_one(source, index, height, width) for index in indices)


def _one(source: Source, index: int, height: int, width: int) -> bool:
    """Draft and resize to the whole size with a centre crop, as `prepare` does."""
    try:
        with source.read(index) as image:
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
