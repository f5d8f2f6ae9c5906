"""Plans of ``δx'``, and of the step of a stack, which sums two of them.

Knows: which operand is A, B or C, the tasks. Does not know: tensors, threads.
"""

from __future__ import annotations

import numpy as np

from cotswold.geometry import BlockLocal
from cotswold.kernels.microkernels.driver import Task
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products.blocks import Blocks, empty_tasks, neuron_offsets, repeat_tasks
from cotswold.kernels.products.cuts import (
    IMAGES_K_BLOCK,
    cut_tiles,
    k_block_of,
    lane_ranges,
    parts_per_block,
    round_up,
    row_cuts,
    split_evenly,
    with_next,
)
from cotswold.kernels.products.plan import Blocking, GemmPlan, Table, Tables

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
    scratch_pitch = round_up(max(width for *_, width in lanes), blocking.lanes)
    positions = tables.add_offsets(np.arange(layer.fan_in, dtype=np.int64) * (pitch or scratch_pitch))
    entries, before = [], 0
    for one in deltas:
        for first, length in one:
            entries.append((first, before * scratch_pitch, length))
            before += length
    k_block = k_block_of(images, IMAGES_K_BLOCK)
    tables.entries.extend(with_next(entries, layer.x.stride * x.column, k_block))
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
