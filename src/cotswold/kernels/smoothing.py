"""L2 pooling on the kernels of this processor: forward, and the gradient by its input.

Knows: how a map is cut into tasks, which kernel does them. Does not know: tensors, autograd.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels import library, smoothing_walk
from cotswold.kernels.emit import Lanes
from cotswold.kernels.machine import Machine
from cotswold.kernels.map_tasks import BYTES, LINE, NONE, Head, View, Workers, bits, perform, up_to_power
from cotswold.kernels.smoothing_walk import Form, write_walk
from cotswold.kernels.smoothing_window import (
    PENALTY,
    POOL,
    SLOPE,
    VECTORS,
    Kind,
    Window,
    scratch_elements,
    write_window,
)

TASKS_A_THREAD = 4
"""Tasks that a thread should find at least, where a map has so many rows."""
LEAST_ROWS = 8
"""Rows of a task at least: the rows around them are read twice."""
BLOCK_BYTES = 3 << 10
"""Bytes of the lanes of a task, which are contiguous: memory is slow where it is read in smaller pieces."""
CACHED_BYTES = 1 << 20
"""Bytes of the rows of a window and the next two: they stay in the second cache."""
LEAST_COLUMNS = 12
"""Columns of a task at least: those around them are summed twice."""
WRITTEN_OUT = 7
"""The largest window whose sums are written out in a kernel of their own."""
WALK_COLUMNS = 12
"""Columns of a part there: few, so that rows of all lanes stay in the second cache and lie together."""
STREAMED_BYTES = 16 << 20
"""Bytes that are read, from which on outputs go past the caches, which would not keep them."""
ALONE = 1 << 14
"""Outputs for which waking other threads does not pay."""


def kernel(kind: Kind, dtype: str, processor: Machine) -> int:
    """The address of a kernel."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    return library.address(
        ("smoothing", kind.name, dtype),
        processor,
        lambda: write_window(kind, lanes, processor.triple),
    )


def walk_kernel(kind: Kind, form: Form, dtype: str, processor: Machine) -> int:
    """The address of a kernel for a small window."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    return library.address(
        ("pooling", kind.name, form.size, form.rows, form.vectors, int(form.stream), dtype),
        processor,
        lambda: write_walk(kind, form, lanes, processor.triple),
    )


def pool(x: View, out: View, shape: MapShape, smoothing: Smoothing, epsilon: float, workers: Workers) -> None:
    """``out = sqrt(sum of x² over a window + epsilon)``; ``shape`` is that of ``x``."""
    _run(
        POOL,
        shape,
        smoothing.output(shape),
        smoothing,
        smoothing.window.low,
        epsilon,
        (x, NONE, NONE, out),
        workers,
    )


def pool_gradient(
    grad: View | None,
    pooled: View,
    x: View,
    out: View,
    shape: MapShape,
    smoothing: Smoothing,
    weight: float,
    workers: Workers,
) -> None:
    """``out = x * (sum of (grad + weight) / pooled over the windows that see a place)``; ``shape`` is x's."""
    kind = PENALTY if grad is None else SLOPE
    low = smoothing.size - 1 - smoothing.window.low
    views = (grad or NONE, pooled, x, out)
    _run(kind, smoothing.output(shape), shape, smoothing, low, weight, views, workers)


@dataclass(frozen=True)
class _Cut:
    """How a map is cut into tasks: lanes of a block, columns and rows of a part, and how many of each."""

    block: int
    blocks: int
    columns: int
    beside: int
    rows: int
    parts: int


def _run(
    kind: Kind,
    source: MapShape,
    target: MapShape,
    smoothing: Smoothing,
    low: int,
    scalar: float,
    views: tuple[View, View, View, View],
    workers: Workers,
) -> None:
    images, channels = workers.images, target.channels
    outputs = images * channels * target.height * target.width
    if outputs == 0:
        return
    together = channels == 1 or all(view is NONE or view.channel == images for view in views)
    groups, lanes = (1, channels * images) if together else (channels, images)
    count = 1 if outputs < ALONE else workers.threads
    walks = smoothing.size <= WRITTEN_OUT
    width = workers.processor.lanes(workers.dtype)
    ring = up_to_power(smoothing.size + 1)
    if walks:
        form = _form(kind, smoothing.size, views[3], lanes, target, workers)
        cut = _cut(target, groups, lanes, form.vectors * width, form.rows, WALK_COLUMNS, workers, count)
        slot = smoothing_walk.scratch_elements(kind, form, width, cut.block, cut.columns)
        address = walk_kernel(kind, form, workers.dtype, workers.processor)
    else:
        room = CACHED_BYTES // ((smoothing.size + 3) * min(BLOCK_BYTES, lanes * BYTES[workers.dtype]))
        columns = max(LEAST_COLUMNS, room - smoothing.size)
        cut = _cut(target, groups, lanes, VECTORS * width, 2, columns, workers, count)
        slot = scratch_elements(kind, cut.block, ring, min(source.width, cut.columns + smoothing.size))
        address = kernel(kind, workers.dtype, workers.processor)
    fields = np.zeros(Window.FIELDS, np.int64)
    fields[Head.TASKS] = groups * cut.blocks * cut.parts * cut.beside
    fields[Window.LANES : Window.INPUT] = (
        *(lanes, cut.blocks, cut.block, cut.parts, cut.rows),
        *(source.height, source.width, target.height, target.width),
        *(low, smoothing.size, ring, bits(scalar)),
    )
    fields[Window.COLUMN_PARTS], fields[Window.PART_COLUMNS] = cut.beside, cut.columns
    for field, view in zip((Window.INPUT, Window.SECOND, Window.FACTOR, Window.OUTPUT), views, strict=True):
        fields[field : field + 4] = (view.address, view.row, view.column, view.channel)
    perform(address, fields, slot, workers.dtype, count)


def _form(kind: Kind, size: int, out: View, lanes: int, target: MapShape, workers: Workers) -> Form:
    """How the kernel of a walk is written for this processor and map."""
    number, width = BYTES[workers.dtype], workers.processor.lanes(workers.dtype)
    rows = 4 if workers.processor.registers > 16 and size <= 5 and not kind.quotient else 2
    vectors = min(2, LINE // (width * number))
    strip = vectors * width
    # parts of lines that go past the caches are six times slower (measured with 32 bytes)
    whole = strip * number == LINE and all(
        n % strip == 0 for n in (lanes, out.address // number, out.row, out.column, out.channel)
    )
    outputs = workers.images * target.channels * target.height * target.width
    read = 3 if kind.grad else 1
    return Form(size, rows, vectors, whole and read * outputs * number >= STREAMED_BYTES)


def _cut(
    target: MapShape,
    groups: int,
    lanes: int,
    strip: int,
    together: int,
    columns: int,
    workers: Workers,
    count: int,
) -> _Cut:
    """Blocks of whole strips; rows in multiples of ``together``; parts enough for ``count`` threads."""
    block = BLOCK_BYTES // BYTES[workers.dtype]
    blocks = max(-(-lanes // block), min(workers.threads, -(-lanes // strip)))
    block = -(-lanes // (blocks * strip)) * strip
    blocks = -(-lanes // block)
    columns = min(columns, target.width)
    columns = -(-target.width // -(-target.width // columns))
    columns += columns % 2
    beside = -(-target.width // columns)
    wanted = 1 if count == 1 else -(-TASKS_A_THREAD * count // (groups * blocks * beside))
    rows = max(LEAST_ROWS, -(-target.height // wanted))
    rows = -(-rows // together) * together
    return _Cut(block, blocks, columns, beside, rows, -(-target.height // rows))
