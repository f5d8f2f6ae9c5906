"""Plans of ``Wx``: with images in the lanes, or neurons for a small batch.

Knows: which operand is A, B or C, the tasks. Does not know: tensors, threads.
"""

from __future__ import annotations

import numpy as np

from cotswold.geometry import BlockLocal, Region
from cotswold.kernels.microkernels.driver import Task
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.blocks import Blocks, empty_tasks, neuron_offsets, repeat_tasks
from cotswold.kernels.products.cuts import (
    cut_tiles,
    k_block_of,
    lane_cuts,
    lane_ranges,
    parts_per_block,
    round_up,
    row_cuts,
    split_evenly,
    with_next,
)
from cotswold.kernels.products.plan import Blocking, GemmPlan, Tables

ROWS_MOST = 256
"""Maximum rows of a task of ``Wx``, so that a k-block of A stays in the second-level cache."""


def field_entries(
    layer: BlockLocal, seen: tuple[int, int, int, int], x: MapStrides
) -> list[tuple[int, int, int]]:
    """``(offset in the filters, offset in the map, k)`` of the rows of a field."""
    top, bottom, left, right = seen
    channels, wide = layer.input.channels, layer.x.size * layer.input.channels
    found = []
    for row in range(top, bottom):
        for first, length in split_evenly((right - left) * channels):
            place = left * channels + first
            found.append(((row * wide + place) * layer.neurons, row * x.row + place * x.channel, length))
    return found


def product_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
) -> GemmPlan:
    """``Wx``: rows are a block's neurons, lanes are images; A is filters, B the input, C the output.

    ``only`` restricts the blocks that are computed.
    """
    tables, blocks, tasks = Tables(), Blocks(layer, only), []
    offset = tables.add_offsets(neuron_offsets(layer, y))
    parts = max(parts_per_block(layer.grid[0] * layer.grid[1], blocking), -(-layer.neurons // ROWS_MOST))
    rows = cut_tiles(tables.row_tiles, [(r, h, r) for r, h in row_cuts(layer.neurons, blocking.tile)], parts)
    ((lane_first, lane_count),) = cut_tiles(tables.lane_tiles, list(lane_cuts(images, blocking)), 1)
    for seen, by, bx in blocks.classes():
        entries = field_entries(layer, seen, x)
        part = empty_tasks(len(by))
        part[:, Task.ENTRY], part[:, Task.ENTRIES] = len(tables.entries), len(entries)
        part[:, Task.A], part[:, Task.B] = blocks.filters(by, bx), blocks.fields(by, bx, x)
        part[:, Task.C], part[:, Task.OFFSET] = blocks.outputs(by, bx, y), offset
        part[:, Task.NORM] = (by * layer.grid[1] + bx) * layer.neurons
        tables.entries.extend(with_next(entries, layer.fan_in * layer.neurons))
        tasks.append(repeat_tasks(part, rows, [(lane_first, lane_count, 0, images)]))
    return tables.plan(np.concatenate(tasks), k_block_of(layer.x.size * layer.input.channels))


def small_batch_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
) -> GemmPlan:
    """``Wx`` of a small batch: rows are images, lanes a block's neurons; A is the input, B filters.

    ``only`` restricts the blocks that are computed.
    """
    tables, blocks, tasks = Tables(), Blocks(layer, only), []
    neurons = tables.add_offsets(neuron_offsets(layer, y))
    pitch = -(-layer.neurons // blocking.lanes) * blocking.lanes
    offset = tables.add_offsets(np.arange(images, dtype=np.int64) * pitch)
    rows = cut_tiles(tables.row_tiles, [(r, h, r) for r, h in row_cuts(images, blocking.tile)], 1)
    lanes = lane_ranges(
        tables, layer.neurons, blocking, parts_per_block(layer.grid[0] * layer.grid[1], blocking)
    )
    for seen, by, bx in blocks.classes():
        entries = [(b, a, k) for a, b, k in field_entries(layer, seen, x)]
        for first, count, lane, width in lanes:
            part = empty_tasks(len(by))
            part[:, Task.ENTRY], part[:, Task.ENTRIES] = len(tables.entries), len(entries)
            part[:, Task.A], part[:, Task.B] = blocks.fields(by, bx, x), blocks.filters(by, bx) + lane
            part[:, Task.C], part[:, Task.OFFSET] = blocks.outputs(by, bx, y), offset
            part[:, Task.NEURON] = neurons
            tasks.append(repeat_tasks(part, rows, [(first, count, lane, width)]))
        tables.entries.extend(with_next(entries, layer.x.stride * x.column))
    k_block = k_block_of(layer.x.size * layer.input.channels)
    return tables.plan(np.concatenate(tasks), k_block, pitch, round_up(images, blocking.lanes) * pitch)
