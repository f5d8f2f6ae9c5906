"""`prepare` compared with Pillow alone on the same files, with as many processes.

Knows: both, including the start of their processes. Does not know: what preparation does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cotswold.bench.measure import Document, rates, ratios, rounded_all
from cotswold.data import Preparation, Source, prepare
from cotswold.errors import SourceError
from lib.pillow import pillow_alone

LEAST_ACCEPTED = 0.8

Progress = Callable[[int, int], None]


def preparation_rates(
    source: Source,
    size: tuple[int, int],
    jobs: int,
    limit: int | None,
    rounds: int,
    progress: Progress | None = None,
) -> Document:
    """Return images per second of both, round by round; every store is deleted.

    The first round warms the file cache and does not count. Raises SourceError if no image can be read.
    """
    preparation = Preparation(size=size)
    count = min(len(source), limit or len(source))
    pillow, whole = list[float](), list[float]()
    for number in range(rounds + 1):
        start = time.perf_counter()
        decoded = pillow_alone(source, size, jobs, count)
        middle = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            middle_now = time.perf_counter()
            summary = prepare(source, Path(folder) / "store", preparation, jobs=jobs, limit=limit)
            end = time.perf_counter()
        if number:
            pillow.append(middle - start)
            whole.append(end - middle_now)
        if progress is not None:
            progress(number + 1, rounds + 1)
    if decoded == 0:
        raise SourceError("no image of the source can be read; use a source with readable images")
    return {
        "images": count,
        "broken": summary.broken,
        "size": list(size),
        "jobs": jobs,
        "least_accepted": LEAST_ACCEPTED,
        "samples_per_second": {
            "prepare": rates(count, whole).as_dict(),
            "Pillow alone": rates(count, pillow).as_dict(),
        },
        "of_pillow": ratios(pillow, whole).as_dict(),
        "seconds": {"prepare": rounded_all(whole), "Pillow alone": rounded_all(pillow)},
    }
