"""Speed of making Japanese print: scans, patterns, stored patterns.

Knows: the command's options, the timed operations. Does not know: how scans and patterns are made.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cotswold.api.ranks import cores
from cotswold.bench.measure import Spread, document
from cotswold.cli.support.tables import require_positive, write_result
from cotswold.data import VectorPreparation, open_vectors, prepare
from cotswold.data.datasets.japanese_ocr import JapaneseSet
from cotswold.data.datasets.japanese_ocr.generate import Printer, Task
from cotswold.data.datasets.japanese_ocr.samples import FEATURES
from cotswold.data.datasets.japanese_ocr.typefaces import installed
from lib.command import Json, command, main, spreads

_SCANS, _PATTERNS = 1000, 50_000


def rates(
    folder: Path, *, stored: int = 200_000, rounds: int = 5, out: Path | None = None, json_: Json = False
) -> None:
    """Measure scans and patterns per second on one core, and stored patterns per second on all cores.

    Example:

        cotswold data make japanese-ocr
        python benchmarks/japanese_ocr.py japanese-ocr --out benchmarks/results

    Parameters
    ----------
    folder
        Set written by `cotswold data make japanese-ocr`.
    stored
        Number of patterns written to a store; the start of preparation is timed too.
    rounds
        Measured repetitions of each, after one warm-up.
    out
        Directory for japanese_ocr.json.
    json_
        Print JSON.
    """
    made = JapaneseSet(folder)
    faces = tuple(installed()[0])
    random = np.random.default_rng(0)
    task = Task(
        folder,
        0,
        0,
        random.choice(len(made.classes), _SCANS, p=made.frequencies / made.frequencies.sum()).astype(
            np.uint16
        ),
        np.zeros(_SCANS, np.uint16),
        ("print",),
    )
    first = made.originals
    cases: dict[str, tuple[int, Callable[[], object]]] = {
        "scans, one core": (_SCANS, lambda: Printer(faces[:1], 0).scans(task)),
        "patterns, one core": (_PATTERNS, lambda: made.samples(np.arange(first, first + _PATTERNS))),
        f"stored patterns, {cores()} cores": (
            stored,
            lambda: _store(folder, require_positive(stored, "--stored")),
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(require_positive(rounds, "--rounds") + 1):
        for name, (count, case) in cases.items():
            begun = time.perf_counter()
            case()
            if turn:
                found[name].append(count / (time.perf_counter() - begun))
    measured = {name: Spread.from_samples(samples).as_dict() for name, samples in found.items()}
    result = document("japanese_ocr", command(), rates_per_second=measured, stored=stored)
    write_result(result, "japanese_ocr", out, json_)
    if not json_:
        spreads("per second", measured)


def _store(folder: Path, count: int) -> None:
    source = open_vectors(f"{folder}:{count}", labels="file")
    with tempfile.TemporaryDirectory() as where:
        prepare(source, Path(where) / "s", VectorPreparation(FEATURES, standardise=False, dtype="float16"))


if __name__ == "__main__":
    main(rates)
