"""A plan: a product of a layer as tables of integers for a kernel.

Knows: the fields of tables and jobs. Does not know: layers, tensors, threads, instructions. Offsets and
strides are in elements, not bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cotswold.kernels.microkernels.job import ProductJob
from cotswold.kernels.microkernels.tile import ENTRY_FIELDS, Tile

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Blocking:
    """Blocking of a plan: the kernel's tile, elements of a vector, and the least number of tasks."""

    tile: Tile
    lanes: int
    tasks: int


@dataclass(frozen=True, eq=False)
class GemmPlan:
    """Tables of `driver`, the scratch of a thread, and the length of a k-block."""

    tasks: Table
    entries: Table
    row_tiles: Table
    lane_tiles: Table
    offsets: Table
    k_block: int
    """Entries of a k-block, whose sums are added to those of the previous k-block."""
    scratch_pitch: int = 0
    scratch_size: int = 0
    gradient: int = 0

    def job(self) -> Table:
        """Return a job without operands that points to all tables, which must outlive it."""
        found = np.zeros(ProductJob.FIELDS, np.int64)
        for name, table in (
            (ProductJob.TASKS, self.tasks),
            (ProductJob.ENTRIES, self.entries),
            (ProductJob.ROW_TILES, self.row_tiles),
            (ProductJob.LANE_TILES, self.lane_tiles),
            (ProductJob.OFFSETS, self.offsets),
        ):
            found[name] = table.ctypes.data
        found[ProductJob.K_BLOCK] = self.k_block
        found[ProductJob.SLOT_SIZE], found[ProductJob.SCRATCH_PITCH] = self.scratch_size, self.scratch_pitch
        found[ProductJob.GRADIENT] = self.gradient
        return found


@dataclass
class Tables:
    """Tables under construction; equal stretches are stored once."""

    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    row_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    lane_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    offsets: list[Table] = field(default_factory=list)
    length: int = 0

    def add_offsets(self, values: Table) -> int:
        """Append offsets; return the index of the first."""
        self.offsets.append(values)
        first, self.length = self.length, self.length + len(values)
        return first

    def plan(
        self, tasks: Table, k_block: int, scratch_pitch: int = 0, scratch_size: int = 0, gradient: int = 0
    ) -> GemmPlan:
        """Return the tables as a plan."""

        def table(rows: Sequence[tuple[int, ...]], fields: int = 3) -> Table:
            return np.array(rows, np.int64).reshape(-1, fields)

        return GemmPlan(
            np.ascontiguousarray(tasks, np.int64),
            table(self.entries, ENTRY_FIELDS),
            table(self.row_tiles),
            table(self.lane_tiles),
            np.concatenate(self.offsets).astype(np.int64),
            k_block,
            scratch_pitch,
            scratch_size,
            gradient,
        )
