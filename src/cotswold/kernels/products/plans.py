"""Plans of the three products: ``Wx``, ``W'y``, and the gradient of the filters.

Knows: which operand is A, B or C, the tasks. Does not know: tensors, threads.

What a layer and its strides decide is made by NumPy, once for all batch sizes. The images then decide the
tiles of lanes of ``Wx`` and ``W'y``, the rows of a small batch, and the entries and scratch of ``δx'``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from cotswold.geometry import BlockLocal, Region, Window
from cotswold.kernels.machine.execution import LruCache
from cotswold.kernels.microkernels.job import TASK
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.blocks import (
    Blocks,
    empty_tasks,
    fields_along,
    neuron_offsets,
    region_mask,
    repeat_tasks,
)
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
)
from cotswold.kernels.products.plan import (
    Blocking,
    GemmPlan,
    MapOffsets,
    Table,
    Tables,
    UnitPlan,
    in_units,
    table_of,
)

ROWS_MOST = 256
"""Maximum rows of a task of ``Wx``, so that a k-block of A stays in the second-level cache."""
PLANS_MOST, PLANS_BYTES = 256, 64 << 20
"""Maximum number of plans of layers to keep, and of their bytes."""

LAYER_PLANS: LruCache[tuple[object, ...], UnitPlan] = LruCache(PLANS_MOST, PLANS_BYTES)

Maker = Callable[..., UnitPlan]


def _of_layer(make: Maker, layer: BlockLocal, x: MapStrides, y: MapStrides, *others: object) -> GemmPlan:
    """Return new tables of a layer: those of ``make`` in units of its maps, from the cache or new, scaled."""
    (unit_x, by_x), (unit_y, by_y) = in_units(x), in_units(y)
    key = (make.__name__, layer, unit_x, unit_y, *others)
    found = LAYER_PLANS.find(key)
    if found is None:
        found = LAYER_PLANS.put(key, partial(make, layer, unit_x, unit_y, *others))
    return found.scaled(by_x, by_y)


def _with_images_in_lanes(plan: GemmPlan, images: int, blocking: Blocking) -> GemmPlan:
    """Return the plan with its tiles of lanes, the same for all tasks."""
    tiles = table_of(list(lane_cuts(images, blocking)))
    plan.tasks[:, TASK["lane_tiles"]], plan.tasks[:, TASK["lanes"]] = len(tiles), images
    return replace(plan, lane_tiles=tiles)


def field_entries(
    layer: BlockLocal, seen: tuple[int, int, int, int], x: MapStrides
) -> tuple[Table, Table, Table]:
    """Offsets in the filters, offsets in the map, and k of the rows of a field, in stretches."""
    top, bottom, left, right = seen
    channels, wide = layer.input.channels, layer.x.size * layer.input.channels
    parts = np.array(list(split_evenly((right - left) * channels)), np.int64).reshape(-1, 2)
    rows, places = np.arange(top, bottom)[:, None], left * channels + parts[:, 0]
    return (
        ((rows * wide + places) * layer.neurons).ravel(),
        (rows * x.row + places * x.channel).ravel(),
        np.tile(parts[:, 1], len(rows)),
    )


def product_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
    tied: bool = False,
) -> GemmPlan:
    """``Wx``: rows are a block's neurons, lanes are images; A is filters, B the input, C the output.

    ``only`` restricts the blocks that are computed. ``tied``: all blocks share the filters of the first.
    """
    plan = _of_layer(_product_of_layer, layer, x, y, blocking, only, tied)
    return _with_images_in_lanes(plan, images, blocking)


def _product_of_layer(
    layer: BlockLocal, x: MapStrides, y: MapStrides, blocking: Blocking, only: Region | None, tied: bool
) -> UnitPlan:
    tables, blocks, tasks = Tables(), Blocks(layer, only, tied), []
    offset = tables.add_offsets(neuron_offsets(layer, y))
    parts = max(parts_per_block(layer.grid[0] * layer.grid[1], blocking), -(-layer.neurons // ROWS_MOST))
    rows = cut_tiles(tables.row_tiles, [(r, h, r) for r, h in row_cuts(layer.neurons, blocking.tile)], parts)
    for seen, by, bx in blocks.classes():
        a, b, k = field_entries(layer, seen, x)
        part = empty_tasks(len(by))
        part[:, TASK["entries"]] = len(k)
        part[:, TASK["entry"]] = tables.add_entries(a, b, k, 0 if tied else layer.fan_in * layer.neurons)
        part[:, TASK["a"]], part[:, TASK["b"]] = blocks.filters(by, bx), blocks.fields(by, bx, x)
        part[:, TASK["c"]], part[:, TASK["offset"]] = blocks.outputs(by, bx, y), offset
        part[:, TASK["norm"]] = blocks.norms(by, bx)
        tasks.append(repeat_tasks(part, rows, [(0, 0, 0, 0)]))
    plan = tables.plan(np.concatenate(tasks), k_block_of(layer.x.size * layer.input.channels))
    return UnitPlan(plan, MapOffsets(TASK["b"], (1,)), MapOffsets(TASK["c"], offsets=layer.neurons))


def small_batch_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
    tied: bool = False,
) -> GemmPlan:
    """``Wx`` of a small batch: rows are images, lanes a block's neurons; A is the input, B filters.

    ``only`` restricts the blocks that are computed. ``tied``: all blocks share the filters of the first.
    """
    plan = _of_layer(_small_batch_of_layer, layer, x, y, blocking, only, tied)
    tiles = table_of([(r, h, r) for r, h in row_cuts(images, blocking.tile)])
    plan.tasks[:, TASK["row_tiles"]] = len(tiles)
    offsets = np.arange(images, dtype=np.int64) * plan.scratch_pitch
    return replace(
        plan,
        row_tiles=tiles,
        offsets=np.concatenate([plan.offsets, offsets]),
        scratch_size=round_up(images, blocking.lanes) * plan.scratch_pitch,
    )


def _small_batch_of_layer(
    layer: BlockLocal, x: MapStrides, y: MapStrides, blocking: Blocking, only: Region | None, tied: bool
) -> UnitPlan:
    tables, blocks, tasks = Tables(), Blocks(layer, only, tied), []
    neurons = tables.add_offsets(neuron_offsets(layer, y))
    lanes = lane_ranges(
        tables, layer.neurons, blocking, parts_per_block(layer.grid[0] * layer.grid[1], blocking)
    )
    for seen, by, bx in blocks.classes():
        b, a, k = field_entries(layer, seen, x)
        entry = tables.add_entries(a, b, k, layer.x.stride * x.column)
        for first, count, lane, width in lanes:
            part = empty_tasks(len(by))
            part[:, TASK["entry"]], part[:, TASK["entries"]] = entry, len(k)
            part[:, TASK["a"]], part[:, TASK["b"]] = blocks.fields(by, bx, x), blocks.filters(by, bx) + lane
            # offsets of images in scratch follow those of the neurons
            part[:, TASK["c"]], part[:, TASK["offset"]] = blocks.outputs(by, bx, y), tables.length
            part[:, TASK["neuron"]] = neurons
            tasks.append(repeat_tasks(part, [(0, 0)], [(first, count, lane, width)]))
    k_block = k_block_of(layer.x.size * layer.input.channels)
    plan = tables.plan(np.concatenate(tasks), k_block, round_up(layer.neurons, blocking.lanes))
    return UnitPlan(plan, MapOffsets(TASK["a"], (0, 3)), MapOffsets(TASK["c"], offsets=layer.neurons))


def _cut_by_windows(window: Window, extent: int, cuts: tuple[int, ...]) -> Table:
    """``(first position, positions, first window, windows)`` of stretches under the same windows, cut."""
    starts, low, high = fields_along(window, extent)
    edges = np.unique(np.concatenate([[0, extent], np.clip(cuts, 0, extent), starts + low, starts + high]))
    first, end = edges[:-1], edges[1:]
    over = np.searchsorted(starts + window.size, end)
    count = np.maximum(np.searchsorted(starts, first, "right") - over, 0)
    return np.stack([first, end - first, np.where(count > 0, over, 0), count], 1)


def _alike(window: Window, stretches: Table) -> tuple[Table, Table]:
    """``(positions, windows, position in the field of the first)`` that differ, and that of each stretch."""
    first, positions, first_window, windows = stretches.T
    in_field = first + window.pad_before - first_window * window.stride
    found, kind = np.unique(np.stack([positions, windows, in_field], 1), axis=0, return_inverse=True)
    return found, kind.reshape(-1)


def adjoint_plan(
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    y: MapStrides,
    blocking: Blocking,
    only: Region | None = None,
    tied: bool = False,
) -> GemmPlan:
    """``W'y``: rows are positions of the input map, lanes are images; A is filters, B the output's map.

    A position is summed over all fields that cover it in one task, so nothing is written twice. ``only``
    restricts the positions that are computed. ``tied``: all blocks share the filters of the first.
    """
    plan = _of_layer(_adjoint_of_layer, layer, x, y, blocking, only, tied)
    return _with_images_in_lanes(plan, images, blocking)


def _adjoint_of_layer(
    layer: BlockLocal, x: MapStrides, y: MapStrides, blocking: Blocking, only: Region | None, tied: bool
) -> UnitPlan:
    tables, channels = Tables(), layer.input.channels
    wide, block = layer.x.size * channels, 0 if tied else layer.fan_in * layer.neurons
    (top, left), (bottom, right) = (only.box.start, only.box.stop) if only else ((0, 0), (0, 0))
    across = _cut_by_windows(layer.x, layer.input.width, (left, right))
    down = _cut_by_windows(layer.y, layer.input.height, (top, bottom))
    tallest, widest = int(down[:, 1].max()), int(across[:, 1].max())
    steps = np.arange(tallest)[:, None] * x.row + np.arange(widest * channels)[None, :] * x.channel
    offset = tables.add_offsets(steps.ravel())
    # in a small map most of the work may be in one stretch that all windows see
    whole = max(int((down[:, 1] * down[:, 3]).sum() * (across[:, 1] * across[:, 3]).sum()), 1)
    (tall, kind_y), (broad, kind_x) = _alike(layer.y, down), _alike(layer.x, across)
    entries: list[tuple[int, int]] = []
    ranges: list[tuple[int, int]] = []
    of_kind: list[tuple[int, int]] = []
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    for rows, y_count, in_field_y in tall.tolist():
        for columns, x_count, in_field_x in broad.tolist():
            share = rows * y_count * columns * x_count
            parts = -(-blocking.tasks * share // whole) if blocking.tasks > 1 else 1
            if (rows, columns, parts) not in known:
                cuts = [
                    (one * widest * channels + r, h, (one * wide + r) * layer.neurons)
                    for one in range(rows)
                    for r, h in row_cuts(columns * channels, blocking.tile)
                ]
                made = cut_tiles(tables.row_tiles, cuts, parts)
                known[rows, columns, parts] = len(ranges), len(made)
                ranges += made
            of_kind.append(known[rows, columns, parts])
            place = in_field_y * wide + in_field_x * channels
            entries.append(_add_covering(tables, layer, y, (y_count, x_count), place, block))
    grid_y, grid_x = (
        one.ravel() for one in np.meshgrid(*map(np.arange, (len(down), len(across))), indexing="ij")
    )
    meant = region_mask(only, down[grid_y, 0], across[grid_x, 0])
    grid_y, grid_x = grid_y[meant], grid_x[meant]
    kind = kind_y[grid_y] * len(broad) + kind_x[grid_x]
    part = empty_tasks(len(kind))
    part[:, TASK["entry"] : TASK["entries"] + 1] = np.array(entries, np.int64)[kind]
    part[:, TASK["a"]] = (down[grid_y, 2] * layer.grid[1] + across[grid_x, 2]) * block
    part[:, TASK["b"]] = down[grid_y, 2] * layer.rows * y.row + across[grid_x, 2] * layer.columns * y.column
    part[:, TASK["c"]] = down[grid_y, 0] * x.row + across[grid_x, 0] * x.column
    part[:, TASK["offset"]] = offset
    tasks = _repeat_by_kind(
        part, np.array(of_kind, np.int64)[kind], np.array(ranges, np.int64).reshape(-1, 2)
    )
    plan = tables.plan(tasks, k_block_of(layer.columns * layer.depth))
    return UnitPlan(plan, MapOffsets(TASK["c"], offsets=tables.length), MapOffsets(TASK["b"], (1,)))


def _add_covering(
    tables: Tables, layer: BlockLocal, y: MapStrides, windows: tuple[int, int], place: int, block: int
) -> tuple[int, int]:
    """Add the entries of all blocks that cover a stretch, at ``place`` in the first's field."""
    sums = layer.columns * layer.depth
    parts = np.array(list(split_evenly(sums)), np.int64)
    j, i, r, part = (one.ravel() for one in np.indices((*windows, layer.rows, len(parts))))
    first, wide = parts[part, 0], layer.x.size * layer.input.channels
    there = place - j * layer.y.stride * wide - i * layer.x.stride * layer.input.channels
    a = (j * layer.grid[1] + i) * block + there * layer.neurons + r * sums + first
    b = (j * layer.rows + r) * y.row + i * layer.columns * y.column + first * y.channel
    return tables.add_entries(a, b, parts[part, 1], block, k_block_of(sums)), len(a)


def _repeat_by_kind(tasks: Table, of_task: Table, ranges: Table) -> Table:
    """Repeat each task for its ranges of row tiles; ``of_task`` is the first and the number of its ranges."""
    first, count = of_task.T
    found = np.repeat(tasks, count, axis=0)
    before = np.repeat(np.cumsum(count) - count, count)
    found[:, TASK["row_tile"] : TASK["row_tiles"] + 1] = ranges[
        np.repeat(first, count) + np.arange(len(found)) - before
    ]
    return found


TRANSPOSED_NUMBERS = 1 << 16
"""Elements of a transposed δ in scratch, unless one tile of lanes needs more."""
STEP_NUMBERS = 1 << 16
"""Elements of a gradient that a step keeps in scratch, unless one tile of lanes needs more."""


def outer_plan(layer: BlockLocal, images: int, x: MapStrides, y: MapStrides, blocking: Blocking) -> GemmPlan:
    """``δx'``: rows are field positions, lanes are neurons; A is the input, B δ transposed, C filters."""
    scratch = -(-images * layer.neurons // TRANSPOSED_NUMBERS)
    parts = max(parts_per_block(layer.grid[0] * layer.grid[1], blocking), scratch)
    plan = _of_layer(_outer_of_layer, layer, x, y, blocking, parts, layer.neurons)
    return _with_images_as_terms(plan, layer, images, x, blocking, deltas=1, gradient=False)


def step_plan(layer: BlockLocal, images: int, x: MapStrides, y: MapStrides, blocking: Blocking) -> GemmPlan:
    """Sum of two ``δx'`` in scratch; the second half of the entries is the second δ and input."""
    vectors = max(STEP_NUMBERS // layer.fan_in // blocking.lanes, blocking.tile.vectors)
    parts = -(-layer.neurons // (vectors * blocking.lanes))
    plan = _of_layer(_outer_of_layer, layer, x, y, blocking, parts, 0)
    return _with_images_as_terms(plan, layer, images, x, blocking, deltas=2, gradient=True)


def _with_images_as_terms(
    plan: GemmPlan,
    layer: BlockLocal,
    images: int,
    x: MapStrides,
    blocking: Blocking,
    deltas: int,
    gradient: bool,
) -> GemmPlan:
    """Return a plan of ``δx'`` with its entries, the images of each δ in k-blocks, and its scratch."""
    first, k = np.array(list(split_evenly(images, IMAGES_K_BLOCK)), np.int64).reshape(-1, 2).T
    first, k = np.tile(first, deltas), np.tile(k, deltas)
    k_block, tables, pitch = k_block_of(images, IMAGES_K_BLOCK), Tables(), plan.scratch_pitch
    tables.add_entries(first, (np.cumsum(k) - k) * pitch, k, layer.x.stride * x.column, k_block)
    plan.tasks[:, TASK["entries"]] = len(k)
    # the last square of the transposition may extend beyond the last image
    transposed = (deltas - 1) * images * pitch + round_up(images, blocking.lanes) * pitch
    size = transposed + (layer.fan_in * pitch if gradient else 0)
    (entries,) = tables.entries
    return replace(plan, entries=entries, k_block=k_block, scratch_size=size, gradient=transposed)


def _outer_of_layer(
    layer: BlockLocal, x: MapStrides, y: MapStrides, blocking: Blocking, parts: int, pitch: int
) -> UnitPlan:
    """Tasks of ``δx'``; ``pitch`` is the stride of C, or 0 if C is in scratch."""
    tables, blocks, tasks = Tables(), Blocks(layer), []
    neurons = tables.add_offsets(neuron_offsets(layer, y))
    lanes = lane_ranges(tables, layer.neurons, blocking, parts)
    scratch_pitch = odd_lines(max(width for *_, width in lanes))
    positions = tables.add_offsets(np.arange(layer.fan_in, dtype=np.int64) * (pitch or scratch_pitch))
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
            part[:, TASK["a"]], part[:, TASK["b"]] = blocks.fields(by, bx, x), blocks.outputs(by, bx, y)
            part[:, TASK["c"]], part[:, TASK["offset"]] = blocks.filters(by, bx) + lane, positions
            part[:, TASK["neuron"]] = neurons
            part[:, TASK["norm"]] = (by * layer.grid[1] + bx) * layer.neurons + lane
            part[:, TASK["padded"]] = not whole
            tasks.append(repeat_tasks(part, rows, [(first, count, lane, width)]))
    plan = tables.plan(_blockwise(tasks), 1, scratch_pitch)
    in_y = MapOffsets(TASK["b"], offsets=layer.neurons)
    return UnitPlan(plan, MapOffsets(TASK["a"], row_tiles=True), in_y)


def _blockwise(tasks: list[Table]) -> Table:
    """Sort tasks by their filters, so that the parts of a block are adjacent."""
    found = np.concatenate(tasks)
    return found[np.argsort(found[:, TASK["c"]], kind="stable")]
