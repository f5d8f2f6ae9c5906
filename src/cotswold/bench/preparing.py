"""`prepare` beside Pillow alone on the same files and as many processes.

Knows: both ways, the start of their processes included. Does not know: what preparation does.
"""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from PIL import Image

from cotswold.bench.measure import Document, rates, ratios, rounded_all
from cotswold.data import Preparation, Source, prepare
from cotswold.errors import SourceError

LEAST_ACCEPTED = 0.8
_CHUNK = 64
_source: Source
_size: tuple[int, int]

Tally = Callable[[int, int], None]


def preparing(
    source: Source,
    size: tuple[int, int],
    jobs: int,
    limit: int | None,
    rounds: int,
    tally: Tally | None = None,
) -> Document:
    """Pictures a second of both, round by round; every store is thrown away.

    The first round warms the file cache and does not count. Raises SourceError where nothing can be read.
    """
    preparation = Preparation(size=size)
    count = min(len(source), limit or len(source))
    pillow, whole = list[float](), list[float]()
    for number in range(rounds + 1):
        start = time.perf_counter()
        decoded = _pillow_alone(source, size, jobs, count)
        middle = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            middle_now = time.perf_counter()
            summary = prepare(source, Path(folder) / "store", preparation, jobs=jobs, limit=limit)
            end = time.perf_counter()
        if number:
            pillow.append(middle - start)
            whole.append(end - middle_now)
        if tally is not None:
            tally(number + 1, rounds + 1)
    if decoded == 0:
        raise SourceError("not one picture can be read, so there is no rate to measure; give readable ones")
    return {
        "pictures": count,
        "broken": summary.broken,
        "size": list(size),
        "jobs": jobs,
        "least_accepted": LEAST_ACCEPTED,
        "pictures_per_second": {
            "prepare": rates(count, whole).as_dict(),
            "Pillow alone": rates(count, pillow).as_dict(),
        },
        "of_pillow": ratios(pillow, whole).as_dict(),
        "seconds": {"prepare": rounded_all(whole), "Pillow alone": rounded_all(pillow)},
    }


def _pillow_alone(source: Source, size: tuple[int, int], jobs: int, count: int) -> int:
    """How many pictures could be decoded and resized."""
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
    height, width = _size
    return sum(itertools.starmap(_one, ((index, height, width) for index in indices)))


def _one(index: int, height: int, width: int) -> bool:
    """Draft and resize to the whole size, the centre cut out, as `prepare` wants it."""
    try:
        with _source.read(index) as picture:
            picture.draft("RGB", (width, height))
            colours = picture.convert("RGB")
            across, down = colours.size
            scale = max(height / down, width / across)
            x, y = (across - width / scale) / 2, (down - height / scale) / 2
            box = (max(x, 0.0), max(y, 0.0), min(across - x, across), min(down - y, down))
            colours.resize((width, height), Image.Resampling.BICUBIC, box=box)
    except Exception:  # decoders meet damaged files with every kind of exception; `prepare` counts them
        return False
    return True
