"""A plan: a product of a layer as tables of integers for a kernel.

Knows: the fields of tables and jobs, which of them are offsets in a map. Does not know: layers, tensors,
threads, instructions. Offsets and strides are in elements, not bytes.

The distance of adjacent channels of a map with images last is its batch size, and all other strides are
multiples of it. So a plan is made once, in these units, and scaled for each batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cotswold.kernels.microkernels.job import ENTRY, JOB
from cotswold.kernels.microkernels.kinds import Tile
from cotswold.kernels.operands import MapStrides

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

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        tables = self.tasks, self.entries, self.row_tiles, self.lane_tiles, self.offsets
        return sum(table.nbytes for table in tables)

    def job(self, tasks: int, values: Mapping[str, int]) -> Table:
        """Return a job of some tasks without operands that points to all tables, which must outlive it."""
        tables = {
            "task_table": self.tasks,
            "entries": self.entries,
            "row_tiles": self.row_tiles,
            "lane_tiles": self.lane_tiles,
            "offsets": self.offsets,
        }
        values = {name: table.ctypes.data for name, table in tables.items()} | {
            "k_block": self.k_block,
            "SLOT_SIZE": self.scratch_size,
            "scratch_pitch": self.scratch_pitch,
            "gradient": self.gradient,
            **values,
        }
        return JOB.fill(tasks, values)


@dataclass(frozen=True)
class MapOffsets:
    """Fields of a plan that are offsets in one map: one of a task, some of an entry.

    ``offsets``: number of the first elements of the plan's ``offsets`` that are. ``row_tiles``: True if
    offsets of tiles of rows are.
    """

    task: int
    entry: tuple[int, ...] = ()
    offsets: int = 0
    row_tiles: bool = False


@dataclass(frozen=True, eq=False)
class UnitPlan:
    """A plan for any batch size: offsets in the input map ``x`` and the output map ``y`` are in units."""

    plan: GemmPlan
    x: MapOffsets
    y: MapOffsets

    @property
    def nbytes(self) -> int:
        """Bytes of all tables."""
        return self.plan.nbytes

    def scaled(self, x_unit: int, y_unit: int) -> GemmPlan:
        """Return new tables with offsets in elements."""
        plan = self.plan
        tasks, entries = plan.tasks.copy(), plan.entries.copy()
        offsets, row_tiles = plan.offsets.copy(), plan.row_tiles.copy()
        for where, unit in ((self.x, x_unit), (self.y, y_unit)):
            tasks[:, where.task] *= unit
            entries[:, list(where.entry)] *= unit
            offsets[: where.offsets] *= unit
            row_tiles[:, 2] *= unit if where.row_tiles else 1
        return replace(plan, tasks=tasks, entries=entries, offsets=offsets, row_tiles=row_tiles)


def in_units(strides: MapStrides) -> tuple[MapStrides, int]:
    """Return strides in units of the channel's stride, and this unit; a view's rows may fit no unit but 1."""
    unit = strides.channel
    if strides.row % unit:
        return strides, 1
    return MapStrides(1, strides.column // unit, strides.row // unit), unit


@dataclass
class Tables:
    """Tables under construction; equal stretches are stored once."""

    entries: list[Table] = field(default_factory=list)
    """Rows ``(offset in A, offset in B, k, prefetch distance)``."""
    row_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    lane_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    offsets: list[Table] = field(default_factory=list)
    entry_count: int = 0
    length: int = 0

    def add_offsets(self, values: Table) -> int:
        """Append offsets; return the index of the first."""
        self.offsets.append(values)
        first, self.length = self.length, self.length + len(values)
        return first

    def add_entries(self, a: Table, b: Table, k: Table, onward: int, distance: int = 1) -> int:
        """Append entries; return the index of the first. Each prefetches A of the entry ``distance`` later.

        After the last entry follows the first, shifted by ``onward``.
        """
        first, self.entry_count = self.entry_count, self.entry_count + len(a)
        if len(a):
            after = np.arange(len(a)) + distance
            again = a[(after - distance) % distance % len(a)] + onward
            place = np.where(after < len(a), a[np.minimum(after, len(a) - 1)], again)
            self.entries.append(np.stack([a, b, k, place - a], 1))
        return first

    def plan(
        self, tasks: Table, k_block: int, scratch_pitch: int = 0, scratch_size: int = 0, gradient: int = 0
    ) -> GemmPlan:
        """Return the tables as a plan."""
        return GemmPlan(
            np.ascontiguousarray(tasks, np.int64),
            np.concatenate([np.zeros((0, ENTRY.size), np.int64), *self.entries]),
            table_of(self.row_tiles),
            table_of(self.lane_tiles),
            np.concatenate(self.offsets).astype(np.int64),
            k_block,
            scratch_pitch,
            scratch_size,
            gradient,
        )


def table_of(rows: Sequence[tuple[int, int, int]]) -> Table:
    """Return rows of three integers as a table."""
    return np.array(rows, np.int64).reshape(-1, 3)
