"""Plans of the three products: ``Wx``, ``W'y``, and the gradient of the filters.

Knows: which operand is A, B or C, the tasks. Does not know: tensors, threads.
"""

from __future__ import annotations

import numpy as np

from cotswold.geometry import BlockLocal, Region, Window
from cotswold.kernels.microkernels.job import Task
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.blocks import Blocks, empty_tasks, fields_along, neuron_offsets, repeat_tasks
from cotswold.kernels.products.cuts import (
    IMAGES_K_BLOCK,
    cut_tiles,
    k_block_of,
    lane_cuts,
    lane_ranges,
    odd_lines,
    parts_per_block,
    round_up,
    row_cuts,
    split_evenly,
    with_prefetch_distance,
)
from cotswold.kernels.products.plan import Blocking, GemmPlan, Table, Tables

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
        tables.entries.extend(with_prefetch_distance(entries, layer.fan_in * layer.neurons))
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
        tables.entries.extend(with_prefetch_distance(entries, layer.x.stride * x.column))
    k_block = k_block_of(layer.x.size * layer.input.channels)
    return tables.plan(np.concatenate(tasks), k_block, pitch, round_up(images, blocking.lanes) * pitch)


def _cut_by_windows(window: Window, extent: int, cuts: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
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
    across_all = _cut_by_windows(layer.x, layer.input.width, (left, right))
    down_all = _cut_by_windows(layer.y, layer.input.height, (top, bottom))
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
            if only is not None and not only.contains(row, column):
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
                tables.entries.extend(with_prefetch_distance(made, block, k_block))
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


TRANSPOSED_NUMBERS = 1 << 16
"""Elements of a transposed δ in scratch, unless one tile of lanes needs more."""
STEP_NUMBERS = 1 << 16
"""Elements of a gradient that a step keeps in scratch, unless one tile of lanes needs more."""


def outer_plan(layer: BlockLocal, images: int, x: MapStrides, y: MapStrides, blocking: Blocking) -> GemmPlan:
    """``δx'``: rows are field positions, lanes are neurons; A is the input, B δ transposed, C filters."""
    scratch = -(-images * layer.neurons // TRANSPOSED_NUMBERS)
    parts = max(parts_per_block(layer.grid[0] * layer.grid[1], blocking), scratch)
    entries = list(split_evenly(images, IMAGES_K_BLOCK))
    return _outer(layer, x, y, blocking, parts, [entries], layer.neurons, images, gradient=False)


def step_plan(layer: BlockLocal, images: int, x: MapStrides, y: MapStrides, blocking: Blocking) -> GemmPlan:
    """Sum of two ``δx'`` in scratch; the second half of the entries is the second δ and input."""
    vectors = max(STEP_NUMBERS // layer.fan_in // blocking.lanes, blocking.tile.vectors)
    parts = -(-layer.neurons // (vectors * blocking.lanes))
    entries = list(split_evenly(images, IMAGES_K_BLOCK))
    return _outer(layer, x, y, blocking, parts, [entries, entries], 0, images, gradient=True)


def _outer(
    layer: BlockLocal,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    parts: int,
    deltas: list[list[tuple[int, int]]],
    pitch: int,
    images: int,
    gradient: bool,
) -> GemmPlan:
    """Plans of ``δx'``; ``deltas`` are the images of each δ, in k-blocks.

    ``pitch`` is the stride of C, or 0 if C is in scratch.
    """
    tables, blocks, tasks = Tables(), Blocks(layer), []
    neurons = tables.add_offsets(neuron_offsets(layer, y))
    lanes = lane_ranges(tables, layer.neurons, blocking, parts)
    scratch_pitch = odd_lines(max(width for *_, width in lanes))
    positions = tables.add_offsets(np.arange(layer.fan_in, dtype=np.int64) * (pitch or scratch_pitch))
    entries, before = [], 0
    for one in deltas:
        for first, length in one:
            entries.append((first, before * scratch_pitch, length))
            before += length
    k_block = k_block_of(images, IMAGES_K_BLOCK)
    tables.entries.extend(with_prefetch_distance(entries, layer.x.stride * x.column, k_block))
    channels, wide = layer.input.channels, layer.x.size * layer.input.channels
    for (top, bottom, left, right), by, bx in blocks.classes():
        cuts = []
        for row in range(top, bottom):
            for start, height in row_cuts((right - left) * channels, blocking.tile):
                place = left * channels + start
                cuts.append((row * wide + place, height, row * x.row + place * x.channel))
        rows = cut_tiles(tables.row_tiles, cuts, 1)
        whole = (top, bottom, left, right) == (0, layer.y.size, 0, layer.x.size)
        for first, count, lane, width in lanes:
            part = empty_tasks(len(by))
            part[:, Task.ENTRIES] = len(entries)
            part[:, Task.A], part[:, Task.B] = blocks.fields(by, bx, x), blocks.outputs(by, bx, y)
            part[:, Task.C], part[:, Task.OFFSET] = blocks.filters(by, bx) + lane, positions
            part[:, Task.NEURON] = neurons
            part[:, Task.NORM] = (by * layer.grid[1] + bx) * layer.neurons + lane
            part[:, Task.PADDED] = not whole
            tasks.append(repeat_tasks(part, rows, [(first, count, lane, width)]))
    # the last square of the transposition may extend beyond the last image
    transposed = (len(deltas) - 1) * images * scratch_pitch + round_up(images, blocking.lanes) * scratch_pitch
    size = transposed + (layer.fan_in * scratch_pitch if gradient else 0)
    return tables.plan(_blockwise(tasks), k_block, scratch_pitch, size, transposed)


def _blockwise(tasks: list[Table]) -> Table:
    """Sort tasks by their filters, so that the parts of a block are adjacent."""
    found = np.concatenate(tasks)
    return found[np.argsort(found[:, Task.C], kind="stable")]
