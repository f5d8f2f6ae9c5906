"""Updates of one stack, on disk or in memory, in a separate process.

Knows: random maps, seconds, bytes counted by the kernel. Does not know: limits, other processes.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.measure import Document, rounded, rounded_all
from cotswold.checkpoint import CheckpointManager
from cotswold.geometry import StackGeometry
from cotswold.host import available_bytes
from cotswold.training.jobs.memory_estimate import stack_budget
from cotswold.training.parameters.offload.memory_plan import ROWS_FRACTION, row_bytes, row_capacities
from cotswold.training.parameters.offload.row_cache import RowThreads
from cotswold.training.parameters.offload.stack import OffloadedStack
from lib.offload.raw_disk import RawDisk

if TYPE_CHECKING:
    from lib.offload.measure import OffloadCase

_SPARSITY, _EPSILON, _RATE = 0.1, 1e-6, 2.0
_OBJECTIVE, _RULE = ops.StackObjective(_SPARSITY, _EPSILON), ops.StepRule(rate=_RATE)


def in_memory(geometry: StackGeometry, batch: int, rounds: int) -> list[float]:
    """Return the seconds of some steps in memory, after one warm-up."""
    layer, maps, one = geometry.filters, _maps(geometry, batch), torch.ones(())
    filters = torch.empty(layer.filters_shape)
    for row in range(layer.grid[0]):  # repeat one row: other values would take minutes
        filters[row] = torch.randn(layer.filters_shape[2:]) if row == 0 else filters[0]
    momentum, norms = torch.zeros_like(filters), ops.filter_norms(filters)
    state = ops.StackState(filters, norms, momentum, one, one.clone())
    ops.calibrate(state, maps, geometry, _OBJECTIVE)
    return _timed(lambda: ops.stack_step(state, maps, geometry, _OBJECTIVE, _RULE), rounds)[1:]


def streamed(case: OffloadCase, folder: Path) -> Document:
    """Return the seconds of updates from disk, of the same bytes read and written raw after each, and their
    counts.

    The first update, with nothing in memory yet, is reported separately.
    """
    geometry, layer = case.geometry, case.geometry.filters
    free = available_bytes() if case.limit_bytes is None else min(available_bytes(), case.limit_bytes)
    maps_bytes = stack_budget(geometry, case.batch).activation_bytes
    room = row_capacities([geometry], int(ROWS_FRACTION * free) - maps_bytes, is_joint=False)[0]
    with RowThreads() as pool:
        stack = OffloadedStack(
            geometry,
            _SPARSITY,
            _EPSILON,
            0,
            0,
            folder=folder / "rows",
            names=("filters", "momentum"),
            room=room,
            threads=pool,
        )
        started = time.perf_counter()
        stack.reset_parameters()
        stack.zero_momentum()
        stack.stream.settle()
        made = time.perf_counter() - started
        raw = RawDisk(folder, row_bytes(layer), case.raw_files)
        maps = _maps(geometry, case.batch)
        stack.calibrate(maps)
        updates, disks, reads, writes = [], [], [], []
        first_pass = (layer.grid[0] - min(room, layer.grid[0])) * row_bytes(layer)
        for _ in range(case.rounds + 1):
            before = _counted()
            start = time.perf_counter()
            stack.step(maps, _OBJECTIVE, _RULE)
            stack.stream.settle()
            updates.append(time.perf_counter() - start)
            read, written = (now - then for now, then in zip(_counted(), before, strict=True))
            reads.append(read)
            writes.append(written)
            disks.append(raw.seconds(first_pass, 0) + raw.seconds(max(read - first_pass, 0), written))
        saving = _save(stack, folder / "checkpoints") if case.saved else None
        if saving is not None:  # the next update writes another generation
            start = time.perf_counter()
            stack.step(maps, _OBJECTIVE, _RULE)
            stack.stream.settle()
            saving["next_update_seconds"] = rounded(time.perf_counter() - start)
    return {
        "rows_in_memory": room,
        "resident_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "making_seconds": rounded(made),
        "first_update_seconds": rounded(updates[0]),
        "read_bytes": reads[-1],
        "written_bytes": writes[-1],
        "update_seconds": rounded_all(updates[1:]),
        "raw_seconds": rounded_all(disks[1:]),
        "checkpoint": saving,
    }


def _maps(geometry: StackGeometry, batch: int) -> Tensor:
    shape = geometry.input
    values = torch.randn(shape.height, shape.width, shape.channels, batch)
    return values.permute(3, 2, 0, 1)


def _timed(step: object, rounds: int) -> list[float]:
    assert callable(step)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds


def _save(stack: OffloadedStack, folder: Path) -> Document:
    start = time.perf_counter()
    CheckpointManager(folder).save(1, [*stack.rows.chunks(), *stack.momentum_rows.chunks()], {})
    return {"seconds": rounded(time.perf_counter() - start)}


def _counted() -> tuple[int, int]:
    """Return the bytes that this process has read from and written to disks, as counted by the kernel."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])
