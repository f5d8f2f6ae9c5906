"""Time of the first call of a new class of shapes: compiling, choosing by measurement, loading.

Knows: processes that start with an empty cache, or with another's cache. Does not know: kernels.

Each figure is the difference between the first and the second call of a process; llvmlite is loaded before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from cotswold.bench.effort import Effort
from cotswold.bench.kernels.baselines import Operands
from cotswold.bench.kernels.shapes import Shape, untied
from cotswold.bench.kernels.stacks import cotswold_products
from cotswold.bench.measure import Spread
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.kernels.available import backend
from cotswold.kernels.compile.code_cache import VARIABLE

COMPILED, TUNED, LOADED = "compile", "compile and measure tiles", "load"
BARS = {COMPILED: 1.0, TUNED: 3.0, LOADED: 0.05}
"""Seconds for each of the three products."""
LIBRARIES = "llvmlite, torch's operators"
"""Other work of a process's first call, independent of its shape; it has no bar."""
SHAPES = {"small": untied(16, 16, 8, 3, 16), "large": untied(32, 32, 20, 5, 64)}
"""One has too little work for measuring tiles, the other enough."""


def measured(products: tuple[str, ...], effort: Effort) -> list[Row]:
    """Seconds of first calls; empty if no kernel is ever compiled."""
    if backend() != "llvm":
        return []
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(effort.process_starts):
        for way, calls in _measure_first_uses().items():
            for product in (*products, LIBRARIES):
                found.setdefault((way, product), []).append(calls[product])
    return [_row(way, product, seconds) for (way, product), seconds in found.items()]


def _measure_first_uses() -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        return {
            COMPILED: _in_new_process("small", first),
            TUNED: _in_new_process("large", second),
            LOADED: _in_new_process("large", second),
        }


def _in_new_process(which: str, cache: str) -> dict[str, float]:
    words = [sys.executable, "-m", "cotswold.bench.kernels.first_use", which]
    told = subprocess.run(
        words,
        env={**os.environ, VARIABLE: str(Path(cache) / "kernels")},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(told.stdout)
    return answer


def first_calls(shape: Shape) -> dict[str, float]:
    """Extra seconds of the first call of each product compared with the second, in this process."""
    found = {}
    nothing, something = (
        cotswold_products(Operands.random(shape.layer, images)) for images in (0, shape.images)
    )
    begun = time.perf_counter()
    for action in nothing.values():  # with no image no kernel runs: only the work of torch and LLVM
        action()
    found[LIBRARIES] = time.perf_counter() - begun
    for name, action in something.items():
        marks = [time.perf_counter()]
        for _ in range(2):
            action()
            marks.append(time.perf_counter())
        found[name] = max(0.0, (marks[1] - marks[0]) - (marks[2] - marks[1]))
    return found


def _row(way: str, product: str, seconds: list[float]) -> Row:
    spread = Spread.from_samples(seconds)
    verdict = Comparison("seconds", spread, None if product == LIBRARIES else BARS[way], "at most")
    return Row(
        RowKey("start", way, product), "s", {COTSWOLD: spread}, {COTSWOLD: seconds}, "seconds", [verdict]
    )


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(json.dumps(first_calls(SHAPES[sys.argv[1]])))
