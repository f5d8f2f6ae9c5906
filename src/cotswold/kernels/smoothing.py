"""L2 pooling on the kernels of this processor: forward, and the gradient by its input.

Knows: how a map is cut into tasks, which kernel does them. Does not know: tensors, autograd.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels import library
from cotswold.kernels.emit import Lanes
from cotswold.kernels.machine import Machine
from cotswold.kernels.map_tasks import BYTES, NONE, Head, View, Workers, bits, perform, up_to_power
from cotswold.kernels.smoothing_window import (
    PENALTY,
    POOL,
    SLOPE,
    UNROLLED,
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
ALONE = 1 << 14
"""Outputs for which waking other threads does not pay."""


def kernel(kind: Kind, dtype: str, processor: Machine) -> int:
    """The address of a kernel."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    return library.address(
        ("smoothing", kind.name, kind.size, dtype),
        processor,
        lambda: write_window(kind, lanes, processor.triple),
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
    width = workers.processor.lanes(workers.dtype)
    if smoothing.size <= UNROLLED:
        kind = replace(kind, size=smoothing.size)
    ring = up_to_power(smoothing.size + 1)
    strip = VECTORS * width
    block = BLOCK_BYTES // BYTES[workers.dtype]
    blocks = max(-(-lanes // block), min(workers.threads, -(-lanes // strip)))
    block = -(-lanes // (blocks * strip)) * strip
    blocks = -(-lanes // block)
    room = CACHED_BYTES // ((smoothing.size + 3) * block * BYTES[workers.dtype]) - smoothing.size
    columns = min(max(LEAST_COLUMNS, room), target.width)
    columns = -(-target.width // -(-target.width // columns))
    columns += columns % 2
    beside = -(-target.width // columns)
    count = 1 if outputs < ALONE else workers.threads
    wanted = 1 if count == 1 else -(-TASKS_A_THREAD * count // (groups * blocks * beside))
    rows = max(LEAST_ROWS, -(-target.height // wanted))
    rows += rows % 2
    parts = -(-target.height // rows)
    fields = np.zeros(Window.FIELDS, np.int64)
    fields[Head.TASKS] = groups * blocks * parts * beside
    fields[Window.LANES : Window.INPUT] = (
        *(lanes, blocks, block, parts, rows),
        *(source.height, source.width, target.height, target.width),
        *(low, smoothing.size, ring, bits(scalar)),
    )
    fields[Window.COLUMN_PARTS], fields[Window.PART_COLUMNS] = beside, columns
    for field, view in zip((Window.INPUT, Window.SECOND, Window.FACTOR, Window.OUTPUT), views, strict=True):
        fields[field : field + 4] = (view.address, view.row, view.column, view.channel)
    slot = scratch_elements(kind, block, ring, min(source.width, columns + smoothing.size))
    perform(kernel(kind, workers.dtype, workers.processor), fields, slot, workers.dtype, count)
