"""Plans: a product of a layer as tables of integers, which a kernel walks.

Knows: where the operands of every block lie, which padding is skipped, how rows and lanes fall into tiles.
Does not know: tensors, threads, instructions. Offsets and pitches are in numbers, not bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from cotswold.geometry import BlockLocal, Region, Window
from cotswold.kernels.microkernels.driver import Job, Task
from cotswold.kernels.microkernels.tile import ENTRY_FIELDS, Tile, heights

Table = NDArray[np.int64]
SECTION = 256
"""The most k that are summed in one chain: what a section of them reads fits the caches."""
IMAGES_SECTION = 384
"""The same where k are images: common batches are one section, after which gradients are written once."""

ROWS_MOST = 256
"""Rows of a task of ``Wx``: as many as leave a section of A in the second cache while lanes pass over it."""
TRANSPOSED_NUMBERS = 1 << 16
"""Numbers of a transposed δ in scratch, if one tile of lanes is not more."""
STEP_NUMBERS = 1 << 16
"""Numbers of a gradient that a step keeps in scratch, if one tile of lanes is not more."""


@dataclass(frozen=True)
class Pitches:
    """Numbers between neighbouring channels, columns and rows of a map."""

    channel: int
    column: int
    row: int


@dataclass(frozen=True)
class Grain:
    """How a plan is cut: the kernel's tile, numbers in a vector, and into how many tasks at least."""

    tile: Tile
    lanes: int
    tasks: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The tables of `driver`, the scratch that a thread needs, and a job that points at all of them."""

    tasks: Table
    entries: Table
    row_tiles: Table
    lane_tiles: Table
    offsets: Table
    section: int
    """Entries of a section, the sums of whose products are added to those of the section before."""
    scratch_pitch: int = 0
    scratch_size: int = 0
    gradient: int = 0

    @cached_property
    def job(self) -> Table:
        """A job without operands."""
        found = np.zeros(Job.FIELDS, np.int64)
        for name, table in (
            (Job.TASKS, self.tasks),
            (Job.ENTRIES, self.entries),
            (Job.ROW_TILES, self.row_tiles),
            (Job.LANE_TILES, self.lane_tiles),
            (Job.OFFSETS, self.offsets),
        ):
            found[name] = table.ctypes.data
        found[Job.SECTION] = self.section
        found[Job.SLOT_SIZE], found[Job.SCRATCH_PITCH] = self.scratch_size, self.scratch_pitch
        found[Job.GRADIENT] = self.gradient
        return found


@dataclass
class _Tables:
    """Tables while they are made; equal stretches are kept once."""

    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    row_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    lane_tiles: list[tuple[int, int, int]] = field(default_factory=list)
    offsets: list[Table] = field(default_factory=list)
    length: int = 0

    def add_offsets(self, values: Table) -> int:
        self.offsets.append(values)
        first, self.length = self.length, self.length + len(values)
        return first

    def finished(
        self, tasks: Table, section: int, scratch_pitch: int = 0, scratch_size: int = 0, gradient: int = 0
    ) -> Plan:
        def table(rows: Sequence[tuple[int, ...]], fields: int = 3) -> Table:
            return np.array(rows, np.int64).reshape(-1, fields)

        return Plan(
            np.ascontiguousarray(tasks, np.int64),
            table(self.entries, ENTRY_FIELDS),
            table(self.row_tiles),
            table(self.lane_tiles),
            np.concatenate(self.offsets).astype(np.int64),
            section,
            scratch_pitch,
            scratch_size,
            gradient,
        )


def row_cuts(rows: int, tile: Tile) -> Iterator[tuple[int, int]]:
    """``(first row, number of the height)``: as many full tiles as there are, then smaller ones."""
    first, sizes = 0, heights(tile)
    for number, height in enumerate(sizes):
        while rows - first >= height:
            yield first, number
            first += height


def lane_cuts(count: int, grain: Grain) -> Iterator[tuple[int, int, int]]:
    """``(first lane, variant, lanes in the last vector)``: tiles of as equal a width as can be."""
    vectors = -(-count // grain.lanes)
    tiles = -(-vectors // grain.tile.vectors)
    first = 0
    for number in range(tiles):
        width = vectors // tiles + (number < vectors % tiles)
        last = min(count - (first + width - 1) * grain.lanes, grain.lanes)
        full = width == grain.tile.vectors and last == grain.lanes
        yield first * grain.lanes, grain.tile.vectors if full else width - 1, last
        first += width


def _stretches(total: int, most: int = SECTION) -> Iterator[tuple[int, int]]:
    """``(first, length)`` of nearly equal parts of at most ``most``."""
    parts = -(-total // most)
    first = 0
    for number in range(parts):
        length = total // parts + (number < total % parts)
        yield first, length
        first += length


def _section(total: int, most: int = SECTION) -> int:
    """Entries of a section, where stretches of ``total`` are entries; fewer at borders change nothing."""
    longest = max((length for _, length in _stretches(total, most)), default=1)
    return max(1, most // longest)


def _ahead(
    entries: Sequence[tuple[int, int, int]], onward: int, distance: int = 1
) -> list[tuple[int, int, int, int]]:
    """Entries, each with the way in A to the one so far behind it; after the last the first, further on."""
    count = len(entries)
    found = []
    for number, (a, b, k) in enumerate(entries):
        after = number + distance
        place = entries[after][0] if after < count else entries[number % distance % count][0] + onward
        found.append((a, b, k, place - a))
    return found


def _axis(window: Window, extent: int) -> tuple[Table, Table, Table]:
    """For each block along an axis: where its field would begin, and the part of the field inside the map."""
    outputs = np.arange(window.outputs(extent), dtype=np.int64)
    start = outputs * window.step - window.low
    return start, np.maximum(-start, 0), np.minimum(extent - start, window.size)


def _cut(
    tables: list[tuple[int, int, int]], made: Sequence[tuple[int, int, int]], parts: int
) -> list[tuple[int, int]]:
    """Append tiles, and cut their range into at most ``parts`` ranges ``(first, count)``."""
    first = len(tables)
    tables.extend(made)
    parts = max(1, min(parts, len(made)))
    return [(first + start, length) for start, length in _stretches(len(made), -(-len(made) // parts))]


def _task_rows(count: int) -> Table:
    return np.zeros((count, Task.FIELDS), np.int64)


def _neurons(layer: BlockLocal, y: Pitches) -> Table:
    """Where the neurons of a block lie in the output map, from its first on."""
    row, column, depth = np.meshgrid(
        np.arange(layer.rows), np.arange(layer.columns), np.arange(layer.depth), indexing="ij"
    )
    return (row * y.row + column * y.column + depth * y.channel).ravel().astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """All blocks ``(y, x)`` in order, and of those that see equally much of the map, which they are."""

    layer: BlockLocal
    only: Region | None = None

    def classes(self) -> Iterator[tuple[tuple[int, int, int, int], Table, Table]]:
        """``(top, bottom, left, right)`` of the field that lies in the map; block rows and columns alike."""
        layer = self.layer
        _, top, bottom = _axis(layer.y, layer.input.height)
        _, left, right = _axis(layer.x, layer.input.width)
        for high in sorted(set(zip(top.tolist(), bottom.tolist(), strict=True))):
            ys = np.flatnonzero((top == high[0]) & (bottom == high[1]))
            for wide in sorted(set(zip(left.tolist(), right.tolist(), strict=True))):
                xs = np.flatnonzero((left == wide[0]) & (right == wide[1]))
                grid_y, grid_x = np.meshgrid(ys, xs, indexing="ij")
                meant = _held(self.only, grid_y, grid_x)
                yield (*high, *wide), grid_y[meant], grid_x[meant]

    def filters(self, y: Table, x: Table) -> Table:
        """Where the filters of blocks begin."""
        layer = self.layer
        return (y * layer.grid[1] + x) * (layer.fan_in * layer.neurons)

    def fields(self, y: Table, x: Table, pitches: Pitches) -> Table:
        """Where the fields of blocks begin in the input map; in the padding, where they would."""
        layer = self.layer
        return (y * layer.y.step - layer.y.low) * pitches.row + (
            x * layer.x.step - layer.x.low
        ) * pitches.column

    def outputs(self, y: Table, x: Table, pitches: Pitches) -> Table:
        """Where the outputs of blocks begin in the output map."""
        return y * self.layer.rows * pitches.row + x * self.layer.columns * pitches.column


def _held(only: Region | None, y: Table, x: Table) -> NDArray[np.bool_]:
    """Which points a region holds; all where there is none."""
    if only is None:
        return np.ones(y.shape, np.bool_)
    (top, left), (bottom, right) = only.box.start, only.box.stop
    inside: NDArray[np.bool_] = (top <= y) & (y < bottom) & (left <= x) & (x < right)
    return ~inside if only.outside else inside


def _field_entries(
    layer: BlockLocal, seen: tuple[int, int, int, int], x: Pitches
) -> list[tuple[int, int, int]]:
    """``(in the filters, in the map, k)`` of the rows of a field."""
    top, bottom, left, right = seen
    channels, wide = layer.input.channels, layer.x.size * layer.input.channels
    found = []
    for row in range(top, bottom):
        for first, length in _stretches((right - left) * channels):
            place = left * channels + first
            found.append(((row * wide + place) * layer.neurons, row * x.row + place * x.channel, length))
    return found


def _spread_tasks(
    base: Table, row_ranges: list[tuple[int, int]], lane_ranges: list[tuple[int, int, int, int]]
) -> Table:
    """Every task once for each range of rows and of lanes."""
    found = []
    for lane_first, lane_count, lane, lanes in lane_ranges:
        for row_first, row_count in row_ranges:
            part = base.copy()
            part[:, Task.ROW_TILE], part[:, Task.ROW_TILES] = row_first, row_count
            part[:, Task.LANE_TILE], part[:, Task.LANE_TILES] = lane_first, lane_count
            part[:, Task.LANES] = lanes
            part[:, Task.NEURON] += lane
            found.append(part)
    # the parts of a block stay together: they share its operands
    return np.stack(found, 1).reshape(-1, Task.FIELDS)


def _parts(blocks: int, grain: Grain) -> int:
    return max(1, grain.tasks // max(blocks, 1))


@lru_cache(maxsize=64)
def product_plan(
    layer: BlockLocal, images: int, x: Pitches, y: Pitches, grain: Grain, only: Region | None = None
) -> Plan:
    """``Wx``: rows are a block's neurons, lanes are images; A is filters, B the input, C the output.

    ``only`` names the blocks that are computed.
    """
    tables, blocks, tasks = _Tables(), _Blocks(layer, only), []
    offset = tables.add_offsets(_neurons(layer, y))
    parts = max(_parts(layer.grid[0] * layer.grid[1], grain), -(-layer.neurons // ROWS_MOST))
    rows = _cut(tables.row_tiles, [(r, h, r) for r, h in row_cuts(layer.neurons, grain.tile)], parts)
    ((lane_first, lane_count),) = _cut(tables.lane_tiles, list(lane_cuts(images, grain)), 1)
    for seen, by, bx in blocks.classes():
        entries = _field_entries(layer, seen, x)
        part = _task_rows(len(by))
        part[:, Task.ENTRY], part[:, Task.ENTRIES] = len(tables.entries), len(entries)
        part[:, Task.A], part[:, Task.B] = blocks.filters(by, bx), blocks.fields(by, bx, x)
        part[:, Task.C], part[:, Task.OFFSET] = blocks.outputs(by, bx, y), offset
        part[:, Task.NORM] = (by * layer.grid[1] + bx) * layer.neurons
        tables.entries.extend(_ahead(entries, layer.fan_in * layer.neurons))
        tasks.append(_spread_tasks(part, rows, [(lane_first, lane_count, 0, images)]))
    return tables.finished(np.concatenate(tasks), _section(layer.x.size * layer.input.channels))


@lru_cache(maxsize=64)
def few_plan(
    layer: BlockLocal, images: int, x: Pitches, y: Pitches, grain: Grain, only: Region | None = None
) -> Plan:
    """``Wx`` of a few images: rows are images, lanes a block's neurons; A is the input, B filters.

    ``only`` names the blocks that are computed.
    """
    tables, blocks, tasks = _Tables(), _Blocks(layer, only), []
    neurons = tables.add_offsets(_neurons(layer, y))
    pitch = -(-layer.neurons // grain.lanes) * grain.lanes
    offset = tables.add_offsets(np.arange(images, dtype=np.int64) * pitch)
    rows = _cut(tables.row_tiles, [(r, h, r) for r, h in row_cuts(images, grain.tile)], 1)
    lanes = _lane_ranges(tables, layer.neurons, grain, _parts(layer.grid[0] * layer.grid[1], grain))
    for seen, by, bx in blocks.classes():
        entries = [(b, a, k) for a, b, k in _field_entries(layer, seen, x)]
        for first, count, lane, width in lanes:
            part = _task_rows(len(by))
            part[:, Task.ENTRY], part[:, Task.ENTRIES] = len(tables.entries), len(entries)
            part[:, Task.A], part[:, Task.B] = blocks.fields(by, bx, x), blocks.filters(by, bx) + lane
            part[:, Task.C], part[:, Task.OFFSET] = blocks.outputs(by, bx, y), offset
            part[:, Task.NEURON] = neurons
            tasks.append(_spread_tasks(part, rows, [(first, count, lane, width)]))
        tables.entries.extend(_ahead(entries, layer.x.step * x.column))
    section = _section(layer.x.size * layer.input.channels)
    return tables.finished(np.concatenate(tasks), section, pitch, _whole(images, grain.lanes) * pitch)


def _whole(count: int, of: int) -> int:
    return -(-count // of) * of


def _lane_ranges(tables: _Tables, count: int, grain: Grain, parts: int) -> list[tuple[int, int, int, int]]:
    """Lanes cut into ``(first tile, tiles, first lane, lanes)``; tiles count from a part's first lane."""
    vectors = -(-count // grain.lanes)
    widest = -(-vectors // parts) if parts > 1 else vectors
    if widest < vectors:  # whole tiles, where there are several
        widest = max(1, widest // grain.tile.vectors) * grain.tile.vectors
    found = []
    for first in range(0, vectors, widest):
        lane = first * grain.lanes
        lanes = min(widest * grain.lanes, count - lane)
        ((tile, tiles),) = _cut(tables.lane_tiles, list(lane_cuts(lanes, grain)), 1)
        found.append((tile, tiles, lane, lanes))
    return found


@lru_cache(maxsize=64)
def outer_plan(layer: BlockLocal, images: int, x: Pitches, y: Pitches, grain: Grain) -> Plan:
    """``δx'``: rows are field positions, lanes are neurons; A is the input, B δ transposed, C filters."""
    scratch = -(-images * layer.neurons // TRANSPOSED_NUMBERS)
    parts = max(_parts(layer.grid[0] * layer.grid[1], grain), scratch)
    entries = list(_stretches(images, IMAGES_SECTION))
    return _outer(layer, x, y, grain, parts, [entries], layer.neurons, images, gradient=False)


@lru_cache(maxsize=64)
def step_plan(layer: BlockLocal, images: int, x: Pitches, y: Pitches, grain: Grain) -> Plan:
    """The sum of two ``δx'``, into scratch: of two δ, and of two inputs, the second half of the entries."""
    vectors = max(STEP_NUMBERS // layer.fan_in // grain.lanes, grain.tile.vectors)
    parts = -(-layer.neurons // (vectors * grain.lanes))
    entries = list(_stretches(images, IMAGES_SECTION))
    return _outer(layer, x, y, grain, parts, [entries, entries], 0, images, gradient=True)


def _outer(
    layer: BlockLocal,
    x: Pitches,
    y: Pitches,
    grain: Grain,
    parts: int,
    stretches: list[list[tuple[int, int]]],
    pitch: int,
    images: int,
    gradient: bool,
) -> Plan:
    """Plans of ``δx'``; ``pitch`` is that of C, or 0 where C is in scratch."""
    tables, blocks, tasks = _Tables(), _Blocks(layer), []
    neurons = tables.add_offsets(_neurons(layer, y))
    lanes = _lane_ranges(tables, layer.neurons, grain, parts)
    scratch_pitch = _whole(max(width for *_, width in lanes), grain.lanes)
    positions = tables.add_offsets(np.arange(layer.fan_in, dtype=np.int64) * (pitch or scratch_pitch))
    entries, before = [], 0
    for one in stretches:
        for first, length in one:
            entries.append((first, before * scratch_pitch, length))
            before += length
    section = _section(images, IMAGES_SECTION)
    tables.entries.extend(_ahead(entries, layer.x.step * x.column, section))
    channels, wide = layer.input.channels, layer.x.size * layer.input.channels
    for (top, bottom, left, right), by, bx in blocks.classes():
        cuts = []
        for row in range(top, bottom):
            for start, height in row_cuts((right - left) * channels, grain.tile):
                place = left * channels + start
                cuts.append((row * wide + place, height, row * x.row + place * x.channel))
        rows = _cut(tables.row_tiles, cuts, 1)
        whole = (top, bottom, left, right) == (0, layer.y.size, 0, layer.x.size)
        for first, count, lane, width in lanes:
            part = _task_rows(len(by))
            part[:, Task.ENTRIES] = len(entries)
            part[:, Task.A], part[:, Task.B] = blocks.fields(by, bx, x), blocks.outputs(by, bx, y)
            part[:, Task.C], part[:, Task.OFFSET] = blocks.filters(by, bx) + lane, positions
            part[:, Task.NEURON] = neurons
            part[:, Task.NORM] = (by * layer.grid[1] + bx) * layer.neurons + lane
            part[:, Task.PADDED] = not whole
            tasks.append(_spread_tasks(part, rows, [(first, count, lane, width)]))
    # the last square of the transposition may reach beyond the last image
    deltas = (len(stretches) - 1) * images * scratch_pitch + _whole(images, grain.lanes) * scratch_pitch
    size = deltas + (layer.fan_in * scratch_pitch if gradient else 0)
    return tables.finished(_blockwise(tasks), section, scratch_pitch, size, deltas)


def _blockwise(tasks: list[Table]) -> Table:
    """Tasks in the order of their filters: the parts of a block together, block after block."""
    found = np.concatenate(tasks)
    return found[np.argsort(found[:, Task.C], kind="stable")]


def _covered(window: Window, extent: int, cuts: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """``(first position, positions, first window, windows)``: stretches that the same windows see, cut."""
    starts, low, high = _axis(window, extent)
    edges = np.unique(np.concatenate([[0, extent], np.clip(cuts, 0, extent), starts + low, starts + high]))
    found = []
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        over = np.flatnonzero((starts <= first) & (starts + window.size >= end))
        found.append((first, end - first, int(over[0]) if len(over) else 0, len(over)))
    return found


@lru_cache(maxsize=64)
def adjoint_plan(
    layer: BlockLocal, images: int, x: Pitches, y: Pitches, grain: Grain, only: Region | None = None
) -> Plan:
    """``W'y``: rows are positions of the input map, lanes are images; A is filters, B the output's map.

    Every position is summed in one go over all fields that cover it, so nothing is written twice. ``only``
    names the positions that are computed.
    """
    tables, tasks = _Tables(), []
    channels, neurons = layer.input.channels, layer.neurons
    wide, block = layer.x.size * channels, layer.fan_in * layer.neurons
    section = _section(layer.columns * layer.depth)
    (top, left), (bottom, right) = (only.box.start, only.box.stop) if only else ((0, 0), (0, 0))
    across_all = _covered(layer.x, layer.input.width, (left, right))
    down_all = _covered(layer.y, layer.input.height, (top, bottom))
    tallest, widest = (max(length for _, length, *_ in one) for one in (down_all, across_all))
    steps = np.arange(tallest)[:, None] * x.row + np.arange(widest * channels)[None, :] * x.channel
    offset = tables.add_offsets(steps.ravel())
    ((lane_first, lane_count),) = _cut(tables.lane_tiles, list(lane_cuts(images, grain)), 1)
    # in a small map most of the work may lie in one stretch, which all windows see
    whole = sum(rows * over for _, rows, _, over in down_all) * sum(
        columns * over for _, columns, _, over in across_all
    )
    row_tiles: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    known: dict[tuple[int, ...], tuple[int, int]] = {}
    for row, rows, y_first, y_count in down_all:
        in_field_y = row + layer.y.low - y_first * layer.y.step
        for column, columns, x_first, x_count in across_all:
            if only is not None and not only.holds(row, column):
                continue
            in_field_x = column + layer.x.low - x_first * layer.x.step
            share = rows * y_count * columns * x_count
            parts = -(-grain.tasks * share // max(whole, 1)) if grain.tasks > 1 else 1
            if (rows, columns, parts) not in row_tiles:
                cuts = [
                    (one * widest * channels + r, h, (one * wide + r) * neurons)
                    for one in range(rows)
                    for r, h in row_cuts(columns * channels, grain.tile)
                ]
                row_tiles[rows, columns, parts] = _cut(tables.row_tiles, cuts, parts)
            key = (y_count, in_field_y, x_count, in_field_x)
            if key not in known:
                made = [
                    (
                        (j * layer.grid[1] + i) * block
                        + (
                            (in_field_y - j * layer.y.step) * wide
                            + (in_field_x - i * layer.x.step) * channels
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
                    for first, length in _stretches(layer.columns * layer.depth)
                ]
                known[key] = len(tables.entries), len(made)
                tables.entries.extend(_ahead(made, block, section))
            part = [0] * Task.FIELDS
            part[Task.ENTRY], part[Task.ENTRIES] = known[key]
            part[Task.A] = (y_first * layer.grid[1] + x_first) * block
            part[Task.B] = y_first * layer.rows * y.row + x_first * layer.columns * y.column
            part[Task.C] = row * x.row + column * x.column
            part[Task.OFFSET] = offset
            part[Task.LANE_TILE], part[Task.LANE_TILES], part[Task.LANES] = lane_first, lane_count, images
            for part[Task.ROW_TILE], part[Task.ROW_TILES] in row_tiles[rows, columns, parts]:
                tasks.append(tuple(part))
    return tables.finished(np.array(tasks, np.int64).reshape(-1, Task.FIELDS), section)
