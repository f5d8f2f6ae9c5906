"""The memory and disk space of a recipe with offloaded filters.

Knows: rows of blocks and their bytes, what must be in memory at once. Does not know: files, threads, tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.geometry import BlockLocal, StackGeometry
from cotswold.recipe import Recipe
from cotswold.recipe.schema import JointTraining
from cotswold.training.parameters.offload.row_order import window

MOMENTUM_ROOM = 3
"""Rows of momentum in memory: one being read, one in use, one being written."""
SPARE_ROOM = 2
"""Rows of filters beyond those of a strip: one being read, one being written."""
ROWS_FRACTION = 0.75
"""The fraction of free memory for rows and maps; the rest serves prefetching and other processes."""
OTHER_BYTES = 512 << 20
"""Bytes of a process apart from rows and maps: prefetched images, freed memory kept by the C library,
kernels (measured: 0.4 to 0.6 GB on the paper's first stack).
"""
FLOAT_BYTES = 4


def min_rows(layer: BlockLocal) -> int:
    """Return the minimum number of filter rows in memory."""
    return min(window(layer) + SPARE_ROOM, layer.grid[0])


def row_bytes(layer: BlockLocal) -> int:
    """Return the bytes of the filters of a block row."""
    return layer.parameters // layer.grid[0] * FLOAT_BYTES


def least_bytes(geometries: Sequence[StackGeometry], is_joint: bool) -> int:
    """Return the minimum bytes of the rows of all stacks in memory.

    Momenta of all stacks count if ``is_joint``, otherwise those of the largest.
    """
    layers = [geometry.filters for geometry in geometries]
    momenta = [min(MOMENTUM_ROOM, layer.grid[0]) * row_bytes(layer) for layer in layers]
    filters = sum(min_rows(layer) * row_bytes(layer) for layer in layers)
    return filters + (sum(momenta) if is_joint else max(momenta))


def row_capacities(geometries: Sequence[StackGeometry], rows_bytes: int, is_joint: bool) -> list[int]:
    """Return the number of filter rows that each stack may keep in a memory of ``rows_bytes``.

    Each stack gets its minimum; the rest is divided by size, because all stacks are read equally often.
    """
    layers = [geometry.filters for geometry in geometries]
    least = [min_rows(layer) for layer in layers]
    more = [(layer.grid[0] - one) * row_bytes(layer) for layer, one in zip(layers, least, strict=True)]
    share = min(max(rows_bytes - least_bytes(geometries, is_joint), 0) / max(sum(more), 1), 1.0)
    return [one + int(share * (layer.grid[0] - one)) for layer, one in zip(layers, least, strict=True)]


def disk_bytes(recipe: Recipe) -> int:
    """Return the maximum bytes of the files: those in use, and those of every checkpoint that is kept.

    Checkpoints share the files that did not change between them.
    """
    sizes = [geometry.filters.parameters * FLOAT_BYTES for geometry in recipe.stack_geometries()]
    generations = recipe.training.checkpoints_kept + 1
    if isinstance(recipe.training, JointTraining):
        return 2 * generations * sum(sizes)
    return sum(sizes) + (2 * generations - 1) * max(sizes)
