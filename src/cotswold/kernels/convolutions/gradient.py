"""The gradient of a convolution's filters and biases by a CPU kernel.

Knows: the tiles, positions and blocks of a convolution as tables of integers; the self-test. Does not know:
the code of a tile, autograd. Maps are ``(image, channel, y, x)`` with the images last in memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, Lanes
from cotswold.kernels.compile.jobs import cached_kernel, prepare_kernel
from cotswold.kernels.convolutions.write import (
    CHAIN_BYTES,
    JOB,
    TILE,
    shape_number,
    tile_limits,
    write_gradient,
)
from cotswold.kernels.machine.execution import PreparedKernel, threads_for_flops
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.operands import MapStrides, name_of, pointer_of, required_map_strides
from cotswold.kernels.products.cuts import split_evenly

STEPS = 48
"""Vectors of images in a chain, about: δ of a tile's neurons stays in the first-level cache."""
SUMS_MOST = 8192
"""Sums of a task, about: their chains stay in the second-level cache."""
SHORT_ROW = 6
"""Channels from which a tile's places are channels of one position."""
CROWDED_LINES = 16
"""Positions these cache lines apart, or a multiple, share few sets of a cache."""
TASKS_A_THREAD = 8
"""Tasks per thread, at least, so that no thread waits long for another."""
TABLES = "parts", "tiles", "targets", "positions", "passes"

Table = NDArray[np.int64]


def filter_gradient(
    delta: Tensor,
    x: Tensor,
    layer: BlockLocal,
    processor: Processor | None = None,
    threads: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of filters ``(neuron, channel, field_y, field_x)`` and biases ``(neuron,)``.

    Args:
        delta: Gradient of the responses, ``(image, neuron, y, x)``, images last.
        x: Input maps, ``(image, channel, y, x)``, images last.
        layer: Geometry of the convolution, with blocks of one position.
        processor: The processor to generate code for, if not this one.
        threads: The most threads, if not torch's.
    """
    here = processor or this_processor()
    assert here is not None, "kernels were requested on an unsupported processor; see `available`"
    most = threads or torch.get_num_threads()
    x, strides = _padded(x, layer)
    alike = (x.shape[0], strides, delta.stride(), x.dtype)
    ready = cached_kernel(
        ("convolution_gradient", layer, *alike, here, most),
        lambda: _prepare(delta, x, strides, layer, here, most),
    )
    shape = layer.depth, layer.input.channels, layer.y.size, layer.x.size
    weights = layer.depth * layer.fan_in
    gradient = x.new_empty(weights + layer.depth)
    ready.run(*(pointer_of(one) for one in (x, delta, gradient)))
    return gradient[:weights].view(shape), gradient[weights:].clone()


def _padded(x: Tensor, layer: BlockLocal) -> tuple[Tensor, MapStrides]:
    """Return the map with its columns of padding, and its strides.

    Positions are an odd number of cache lines apart: else those of a tile share the sets of the first-level
    cache.
    """
    known = required_map_strides(x)
    before, after = layer.x.pad_before, layer.x.pad_after
    line = CHAIN_BYTES // x.element_size()
    crowded = layer.input.channels >= SHORT_ROW and known.column % (CROWDED_LINES * line) == 0
    if not (before or after or crowded):
        return x, known
    images, channels, height, width = x.shape
    channel, wide = max(images, 1), width + before + after
    column = channels * channel
    if crowded:
        column = (-(-column // line) | 1) * line
    strides = MapStrides(channel, column, wide * column)
    out = x.new_empty_strided((images, channels, height, wide), (1, channel, strides.row, strides.column))
    out[..., :before], out[..., wide - after :] = 0, 0
    out[..., before : before + width] = x
    return out, strides


def _prepare(
    delta: Tensor, x: Tensor, strides: MapStrides, layer: BlockLocal, processor: Processor, threads: int
) -> PreparedKernel:
    code = kernel(name_of(x.dtype), processor)
    most = threads_for_flops(layer.product_flops * x.shape[0], threads)
    return _prepare_gradient(code, delta, x, strides, layer, processor, most)


def kernel(dtype: str, processor: Processor) -> int:
    """Return the address of the kernel."""
    limits = tile_limits(processor.isa)
    write = partial(write_gradient, Lanes(dtype, processor.lanes(dtype)), limits, processor.triple)
    trial = partial(_passes_self_test, dtype, processor)
    return library.address(("convolution_gradient", dtype), processor, write, trial)


def _tiles(
    layer: BlockLocal, x: MapStrides, delta: MapStrides, limits: tuple[int, int]
) -> tuple[Table, Table]:
    """Tiles, and the targets of their sums in the gradients of filters and biases.

    Tiles are ordered by neurons, then by rows of the field, then by channels, so that tiles of neighbouring
    columns, which read the same positions, follow each other. The last is empty and marks the end.
    """
    channels, neurons, across = layer.input.channels, layer.depth, layer.grid[1]
    numbers = np.arange(layer.fan_in, dtype=np.int64).reshape(channels, layer.y.size, layer.x.size)
    if channels < SHORT_ROW:  # a tile covers several columns of the field
        cuts = [(0, place, high) for place, high in split_evenly(layer.x.size * channels, limits[0])]
    else:
        cuts = [
            (column, place, high)
            for place, high in split_evenly(channels, limits[0])
            for column in range(layer.x.size)
        ]
    found: list[tuple[int, ...]] = []
    targets: list[Table] = []
    count = 0

    def add(places: int, x_offset: int, rows: tuple[int, int], of_gradient: Table) -> None:
        nonlocal count
        shape = shape_number(places, width, limits)
        found.append(
            (shape, x_offset, neuron * delta.channel, width, rows[0] * across, rows[1] * across, count)
        )
        targets.append(of_gradient.ravel())
        count += of_gradient.size

    for neuron, width in split_evenly(neurons, limits[1]):
        own = np.arange(neuron, neuron + width, dtype=np.int64)
        for y in range(layer.y.size):
            above = layer.y.pad_before - y
            # output rows whose input row is inside of the map
            rows = max(0, -(-above // layer.y.stride)), -(-(layer.input.height + above) // layer.y.stride)
            of_row = numbers[:, y].T.ravel()
            for column, place, high in cuts:
                start = column * channels + place
                add(
                    high,
                    column * x.column + place * x.channel - above * x.row,
                    (rows[0], min(rows[1], layer.grid[0])),
                    of_row[start : start + high, None] + own * layer.fan_in,
                )
        add(0, 0, (0, layer.grid[0]), neurons * layer.fan_in + own)
    found.append((0, 0, 0, 0, 0, 0, count))
    return np.array(found, np.int64), np.concatenate(targets)


def _positions(layer: BlockLocal, x: MapStrides, delta: MapStrides) -> Table:
    """Offsets of each output position in x, if its row of the field is the first, and in δ."""
    row, column = np.mgrid[: layer.grid[0], : layer.grid[1]]
    in_x = row * layer.y.stride * x.row + column * layer.x.stride * x.column
    return np.stack([in_x, row * delta.row + column * delta.column], -1).astype(np.int64)


def _passes(images: int, lanes: int, chains: int) -> Table:
    """Whole vectors of each pass over the images, and the lanes of one more."""
    found = []
    for first in range(0, chains, lanes):
        whole = max(0, (images - first - lanes) // chains + 1)
        found.append((whole, min(max(images - first - whole * chains, 0), lanes)))
    return np.array(found, np.int64)


def _prepare_gradient(
    code: int,
    delta: Tensor,
    x: Tensor,
    strides: MapStrides,
    layer: BlockLocal,
    processor: Processor,
    threads: int,
) -> PreparedKernel:
    """Prepare the kernel at an address; it runs on x, δ, and the gradient of filters, then biases."""
    dtype, images, of_delta = name_of(x.dtype), x.shape[0], required_map_strides(delta)
    chains, limits = CHAIN_BYTES // BYTES[dtype], tile_limits(processor.isa)
    tiles, targets = _tiles(layer, strides, of_delta, limits)
    positions, passes = _positions(layer, strides, of_delta), _passes(images, processor.lanes(dtype), chains)
    least = TASKS_A_THREAD * threads if threads > 1 else 1
    count = min(len(tiles) - 1, max(least, -(-len(targets) // SUMS_MOST)))
    starts = np.arange(count + 1, dtype=np.int64) * (len(tiles) - 1) // count
    most = int(np.diff(tiles[starts, TILE["sum"]]).max())
    chunks = -(-images // chains)
    block = max(1, STEPS // chunks)
    panel = block * chunks * chains * limits[1]
    tables = starts, tiles, targets, positions, passes
    fields = JOB.fill(
        count,
        dict(zip(TABLES, (table.ctypes.data for table in tables), strict=True))
        | {"x_pitch": strides.column if layer.input.channels == 1 else strides.channel}
        | {"delta_pitch": of_delta.channel, "count": len(positions.reshape(-1, 2))}
        | {"block": block, "chunks": chunks, "panel": panel},
    )
    operands = JOB.places("x", "delta", "gradient")
    return prepare_kernel(code, fields, operands, panel + most * chains, (dtype, threads), tables)


def _passes_self_test(dtype: str, processor: Processor, address: int) -> bool:
    """True if the kernel computes small gradients with tiles of every size correctly."""
    places, neurons = tile_limits(processor.isa)
    images = 2 * CHAIN_BYTES // BYTES[dtype] + processor.lanes(dtype) + 1
    for high in range(1, places + 1):
        layer = BlockLocal(MapShape(1, 5, high + 3), Window(2, 2), Window(high, 1), 1, 1, neurons)
        for wide in range(1, neurons + 1):
            trial = replace(layer, depth=wide)
            values = self_test_reference.sample_values(5, high + 3, 1, images)
            slopes = self_test_reference.sample_values(*trial.grid, wide, images, seed=1)
            x, delta = (self_test_reference.as_map(one, dtype) for one in (values, slopes))
            gradient = torch.full((wide * (trial.fan_in + 1),), torch.nan, dtype=x.dtype, device="cpu")
            known = required_map_strides(x)
            ready = _prepare_gradient(address, delta, x, known, trial, processor, 1)
            ready.run(*(pointer_of(one) for one in (x, delta, gradient)))
            right = self_test_reference.Products(trial).outer(slopes, values).sum((0, 1))
            expected = np.append(right.reshape(-1, wide).T.ravel(), slopes.sum((0, 1, 3)))
            if not self_test_reference.is_close(gradient, expected):
                return False
    return True
