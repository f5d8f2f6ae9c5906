"""Plans of ``W'y``: the contributions of all fields that cover a position.

Knows: which operand is A, B or C, the tasks. Does not know: tensors, threads.
"""

from __future__ import annotations

import numpy as np

from cotswold.geometry import BlockLocal, Region, Window
from cotswold.kernels.microkernels.driver import Task
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.blocks import fields_along
from cotswold.kernels.products.cuts import (
    cut_tiles,
    k_block_of,
    lane_cuts,
    row_cuts,
    split_evenly,
    with_next,
)
from cotswold.kernels.products.plan import Blocking, GemmPlan, Tables


def _covered(window: Window, extent: int, cuts: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """``(first position, positions, first window, windows)`` of stretches under the same windows, cut."""
    starts, low, high = fields_along(window, extent)
    edges = np.unique(np.concatenate([[0, extent], np.clip(cuts, 0, extent), starts + low, starts + high]))
    found = []
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        over = np.flatnonzero((starts <= first) & (starts + window.size >= end))
        found.append((first, end - first, int(over[0]) if len(over) else 0, len(over)))
    return found


def adjoint_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
) -> GemmPlan:
    """``W'y``: rows are positions of the input map, lanes are images; A is filters, B the output's map.

    A position is summed over all fields that cover it in one task, so nothing is written twice. ``only``
    restricts the positions that are computed.
    """
    tables, tasks = Tables(), []
    channels, neurons = layer.input.channels, layer.neurons
    wide, block = layer.x.size * channels, layer.fan_in * layer.neurons
    k_block = k_block_of(layer.columns * layer.depth)
    (top, left), (bottom, right) = (only.box.start, only.box.stop) if only else ((0, 0), (0, 0))
    across_all = _covered(layer.x, layer.input.width, (left, right))
    down_all = _covered(layer.y, layer.input.height, (top, bottom))
    tallest, widest = (max(length for _, length, *_ in one) for one in (down_all, across_all))
    steps = np.arange(tallest)[:, None] * x.row + np.arange(widest * channels)[None, :] * x.channel
    offset = tables.add_offsets(steps.ravel())
    ((lane_first, lane_count),) = cut_tiles(tables.lane_tiles, list(lane_cuts(images, blocking)), 1)
    # in a small map most of the work may be in one stretch that all windows see
    whole = sum(rows * over for _, rows, _, over in down_all) * sum(
        columns * over for _, columns, _, over in across_all
    )
    row_tiles: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    known: dict[tuple[int, ...], tuple[int, int]] = {}
    for row, rows, y_first, y_count in down_all:
        in_field_y = row + layer.y.pad_before - y_first * layer.y.stride
        for column, columns, x_first, x_count in across_all:
            if only is not None and not only.holds(row, column):
                continue
            in_field_x = column + layer.x.pad_before - x_first * layer.x.stride
            share = rows * y_count * columns * x_count
            parts = -(-blocking.tasks * share // max(whole, 1)) if blocking.tasks > 1 else 1
            if (rows, columns, parts) not in row_tiles:
                cuts = [
                    (one * widest * channels + r, h, (one * wide + r) * neurons)
                    for one in range(rows)
                    for r, h in row_cuts(columns * channels, blocking.tile)
                ]
                row_tiles[rows, columns, parts] = cut_tiles(tables.row_tiles, cuts, parts)
            key = (y_count, in_field_y, x_count, in_field_x)
            if key not in known:
                made = [
                    (
                        (j * layer.grid[1] + i) * block
                        + (
                            (in_field_y - j * layer.y.stride) * wide
                            + (in_field_x - i * layer.x.stride) * channels
                        )
                        * neurons
                        + r * layer.columns * layer.depth
                        + first,
                        (j * layer.rows + r) * y.row + i * layer.columns * y.column + first * y.channel,
                        length,
                    )
                    for j in range(y_count)
                    for i in range(x_count)
                    for r in range(layer.rows)
                    for first, length in split_evenly(layer.columns * layer.depth)
                ]
                known[key] = len(tables.entries), len(made)
                tables.entries.extend(with_next(made, block, k_block))
            part = [0] * Task.FIELDS
            part[Task.ENTRY], part[Task.ENTRIES] = known[key]
            part[Task.A] = (y_first * layer.grid[1] + x_first) * block
            part[Task.B] = y_first * layer.rows * y.row + x_first * layer.columns * y.column
            part[Task.C] = row * x.row + column * x.column
            part[Task.OFFSET] = offset
            part[Task.LANE_TILE], part[Task.LANE_TILES], part[Task.LANES] = lane_first, lane_count, images
            for part[Task.ROW_TILE], part[Task.ROW_TILES] in row_tiles[rows, columns, parts]:
                tasks.append(tuple(part))
    return tables.plan(np.array(tasks, np.int64).reshape(-1, Task.FIELDS), k_block)
