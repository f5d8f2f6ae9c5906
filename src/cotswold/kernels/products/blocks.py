"""Offsets of the operands of every block, and the part of its field in the padding.

Knows: the geometry of a layer, strides of maps. Does not know: tiles, the order of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotswold.geometry import BlockLocal, Region, Window
from cotswold.kernels.microkernels.job import TASK
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.plan import Table


def fields_along(window: Window, extent: int) -> tuple[Table, Table, Table]:
    """For each block along an axis, the start of its field, and the part of the field inside the map."""
    outputs = np.arange(window.outputs(extent), dtype=np.int64)
    start = outputs * window.stride - window.pad_before
    return start, np.maximum(-start, 0), np.minimum(extent - start, window.size)


def empty_tasks(count: int) -> Table:
    """Return ``count`` tasks with all fields 0."""
    return np.zeros((count, TASK.size), np.int64)


def neuron_offsets(layer: BlockLocal, y: MapStrides) -> Table:
    """Offsets of a block's neurons in the output map, relative to its first."""
    row, column, depth = np.meshgrid(
        np.arange(layer.rows), np.arange(layer.columns), np.arange(layer.depth), indexing="ij"
    )
    return (row * y.row + column * y.column + depth * y.channel).ravel().astype(np.int64)


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks ``(y, x)`` in order, grouped by the part of the map that they see."""

    layer: BlockLocal
    region: Region | None = None
    tied: bool = False
    """True if all blocks share the filters and biases of the first."""

    def classes(self) -> Iterator[tuple[tuple[int, int, int, int], Table, Table]]:
        """Yield ``(top, bottom, left, right)`` of a field in the map, and rows and columns of its blocks."""
        layer = self.layer
        _, top, bottom = fields_along(layer.y, layer.input.height)
        _, left, right = fields_along(layer.x, layer.input.width)
        for high in sorted(set(zip(top.tolist(), bottom.tolist(), strict=True))):
            ys = np.flatnonzero((top == high[0]) & (bottom == high[1]))
            for wide in sorted(set(zip(left.tolist(), right.tolist(), strict=True))):
                xs = np.flatnonzero((left == wide[0]) & (right == wide[1]))
                grid_y, grid_x = np.meshgrid(ys, xs, indexing="ij")
                meant = region_mask(self.region, grid_y, grid_x)
                yield (*high, *wide), grid_y[meant], grid_x[meant]

    def filters(self, y: Table, x: Table) -> Table:
        """Offsets of the filters of blocks."""
        return self.norms(y, x) * self.layer.fan_in

    def norms(self, y: Table, x: Table) -> Table:
        """Offsets of the biases of blocks, and of other values per filter."""
        layer = self.layer
        return (y * layer.grid[1] + x) * (0 if self.tied else layer.neurons)

    def fields(self, y: Table, x: Table, pitches: MapStrides) -> Table:
        """Offsets of the fields of blocks in the input map, also if they start in the padding."""
        layer = self.layer
        return (y * layer.y.stride - layer.y.pad_before) * pitches.row + (
            x * layer.x.stride - layer.x.pad_before
        ) * pitches.column

    def outputs(self, y: Table, x: Table, pitches: MapStrides) -> Table:
        """Offsets of the outputs of blocks in the output map."""
        return y * self.layer.rows * pitches.row + x * self.layer.columns * pitches.column


def region_mask(only: Region | None, y: Table, x: Table) -> NDArray[np.bool_]:
    """Mask of the points that a region contains; all points without a region."""
    if only is None:
        return np.ones(y.shape, np.bool_)
    (top, left), (bottom, right) = only.box.start, only.box.stop
    inside: NDArray[np.bool_] = (top <= y) & (y < bottom) & (left <= x) & (x < right)
    return ~inside if only.is_outside else inside


def repeat_tasks(
    base: Table, row_ranges: list[tuple[int, int]], lane_ranges: list[tuple[int, int, int, int]]
) -> Table:
    """Repeat every task for each range of rows and of lanes."""
    found = []
    for lane_first, lane_count, lane, lanes in lane_ranges:
        for row_first, row_count in row_ranges:
            part = base.copy()
            part[:, TASK["row_tile"]], part[:, TASK["row_tiles"]] = row_first, row_count
            part[:, TASK["lane_tile"]], part[:, TASK["lane_tiles"]] = lane_first, lane_count
            part[:, TASK["lanes"]] = lanes
            part[:, TASK["neuron"]] += lane
            found.append(part)
    # parts of a block are adjacent, because they share its operands
    return np.stack(found, 1).reshape(-1, TASK.size)
