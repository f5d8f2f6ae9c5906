"""A stack larger than its memory limit: the time of an update compared with computation and disk.

Knows: the stack, the limit, the comparison. Does not know: the command line.

An update cannot be faster than its computation, nor than its bytes at the disk's rate. Both are measured in
the same run: the same step in memory, if it fits; and after every update the same bytes, read and written by
as many threads that do nothing else.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from cotswold.bench.measure import Document, Spread, rounded
from cotswold.errors import DiskFullError, UserError
from cotswold.geometry import StackGeometry
from cotswold.recipe import Recipe
from cotswold.training.jobs.memory_estimate import stack_budget
from cotswold.training.parameters.offload.memory_plan import row_bytes
from lib.offload.limit import MemoryGroup, memory_group

DISK_PART = 0.9
"""Fraction of the free disk that the largest part of a stack may take."""
SHARE = 4
"""Default size of a stack relative to the limit."""
RAW_FILES, RAW_BYTES = (4, 64), 3 << 30
"""Numbers of files and bytes to read and write for the disk's own rate; more than a cache holds."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class OffloadCase:
    """A stack on disk: its geometry, the mini-batch, bytes of memory, timed updates."""

    geometry: StackGeometry
    batch: int
    limit_bytes: int | None
    rounds: int
    saved: bool
    """True if a checkpoint is written too, so that there are two generations."""

    @property
    def stack_bytes(self) -> int:
        """Bytes of filters and momentum."""
        layer = self.geometry.filters
        return 2 * layer.grid[0] * row_bytes(layer)

    @property
    def raw_files(self) -> int:
        """Number of files, each as large as a row, to read and write for the disk's own rate."""
        return _raw_files(self.geometry)


def part_of(recipe: Recipe, stack: int, rows: int | None) -> StackGeometry:
    """Return a stack of a recipe, numbered from 1, or its first rows of blocks; raise UserError if there is
    no such stack."""
    geometries = recipe.stack_geometries()
    if not 1 <= stack <= len(geometries):
        raise UserError(f"{recipe.name} has no stack {stack}; choose 1 to {len(geometries)}")
    geometry = geometries[stack - 1]
    down = geometry.filters.grid[0]
    if rows is None or rows >= down:
        return geometry
    if rows < 1:
        raise UserError(f"--rows must be 1 to {down}, got {rows}")
    return replace(geometry, filters=geometry.filters.block_rows(0, rows)[0])


def largest_rows(recipe: Recipe, stack: int, folder: Path, generations: int) -> int:
    """Return the number of rows of blocks for which the disk holds all generations; raise DiskFullError if
    none fit."""
    geometry = part_of(recipe, stack, None)
    row = row_bytes(geometry.filters)
    room = DISK_PART * shutil.disk_usage(folder).free - _raw_files(geometry) * row
    rows = int(room // (2 * generations * row))
    if rows < 1:
        raise DiskFullError(f"{folder} is too full for a row of blocks; use another --folder")
    return min(rows, geometry.filters.grid[0])


def offload(case: OffloadCase, folder: Path, told: Callable[[str], None]) -> Document:
    """Measure a case in a temporary folder inside ``folder``."""
    raw_bytes = case.raw_files * row_bytes(case.geometry.filters)
    needed = case.stack_bytes * (2 if case.saved else 1) + raw_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFullError(
            f"the measurement needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free; "
            "use another --folder or fewer --rows"
        )
    computing = _computing(case, told)
    limited = nullcontext() if case.limit_bytes is None else memory_group(case.limit_bytes)
    with tempfile.TemporaryDirectory(prefix="cotswold-offload-", dir=folder) as made, limited as group:
        told("updates from the disk")
        measured = _apart(_streamed, case, Path(made), group=group)
        peak = None if group is None else group.peak_bytes
    return _summary(case, computing, measured, peak, limited_by=group)


def _apart(work: Callable[..., Result], *arguments: object, group: MemoryGroup | None = None) -> Result:
    """Run a function in a separate process, which joins the group before it allocates memory."""
    spawn = multiprocessing.get_context("spawn")
    start = None if group is None else group.join
    with ProcessPoolExecutor(1, spawn, initializer=start) as process:
        return process.submit(work, *arguments).result()


def _computing(case: OffloadCase, told: Callable[[str], None]) -> list[float] | None:
    """Return the seconds of the step in memory, or None if it does not fit."""
    from cotswold.host import available_bytes

    budget = stack_budget(case.geometry, case.batch)
    if budget.training_bytes > 0.9 * available_bytes():
        return None
    told("updates in memory")
    return _apart(_in_memory, case)


def _in_memory(case: OffloadCase) -> list[float]:
    from lib.offload.worker import in_memory

    return in_memory(case.geometry, case.batch, case.rounds)


def _streamed(case: OffloadCase, folder: Path) -> Document:
    from lib.offload.worker import streamed

    return streamed(case, folder)


def _raw_files(geometry: StackGeometry) -> int:
    least, most = RAW_FILES
    return min(max(least, RAW_BYTES // row_bytes(geometry.filters)), most)


def _summary(
    case: OffloadCase,
    computing: list[float] | None,
    measured: Document,
    peak: int | None,
    limited_by: MemoryGroup | None,
) -> Document:
    layer = case.geometry.filters
    updates, raw = measured.pop("update_seconds"), measured.pop("raw_seconds")
    assert isinstance(updates, list) and isinstance(raw, list)
    in_memory = None if computing is None else median(computing)
    against = [one / max(in_memory or 0.0, disk) for one, disk in zip(updates, raw, strict=True)]
    group = None if limited_by is None else f"control group, version {limited_by.version}"
    return {
        "parameters": layer.parameters,
        "block_rows": layer.grid[0],
        "batch": case.batch,
        "stack_bytes": case.stack_bytes,
        "limit_bytes": case.limit_bytes,
        "limited_by": group if case.limit_bytes is not None else None,
        "stack_over_limit": None
        if case.limit_bytes is None
        else rounded(case.stack_bytes / case.limit_bytes),
        "peak_bytes": peak,
        **measured,
        "update_seconds": Spread.from_samples(updates).as_dict(),
        "in_memory_seconds": None if computing is None else Spread.from_samples(computing).as_dict(),
        "raw_disk_seconds": Spread.from_samples(raw).as_dict(),
        "over_the_larger": Spread.from_samples(against).as_dict(),
    }
