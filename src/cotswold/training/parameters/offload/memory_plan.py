"""How much memory and disk a recipe takes whose filters are on the disk.

Knows: rows of blocks and their bytes, what must be in memory at once. Does not know: files, threads, tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.geometry import BlockLocal, StackGeometry
from cotswold.recipe import Recipe
from cotswold.recipe.schema import JointTraining
from cotswold.training.parameters.offload.row_order import window

MOMENTUM_ROOM = 3
"""Rows of momentum in memory: coming, in use, going."""
SPARE_ROOM = 2
"""Rows of filters beside those that a strip needs: coming, going."""
TAKEN = 0.75
"""The part of the free memory that rows and maps take; the rest is for reading ahead and for others."""
BESIDE_BYTES = 512 << 20
"""What a process holds beside rows and maps: pictures read ahead, freed memory that the C library keeps,
kernels (measured: 0.4 to 0.6 GB on the paper's first stack)."""
FLOAT_BYTES = 4


def least_room(layer: BlockLocal) -> int:
    """Rows of filters for which there must be room at once."""
    return min(window(layer) + SPARE_ROOM, layer.grid[0])


def row_bytes(layer: BlockLocal) -> int:
    """Bytes of the filters of a block row."""
    return layer.parameters // layer.grid[0] * FLOAT_BYTES


def least_bytes(geometries: Sequence[StackGeometry], together: bool) -> int:
    """Bytes of the rows of all stacks that must be in memory at once at the least.

    Momenta are those of all stacks where they train ``together``, else of one at a time.
    """
    layers = [geometry.filters for geometry in geometries]
    momenta = [min(MOMENTUM_ROOM, layer.grid[0]) * row_bytes(layer) for layer in layers]
    filters = sum(least_room(layer) * row_bytes(layer) for layer in layers)
    return filters + (sum(momenta) if together else max(momenta))


def rooms(geometries: Sequence[StackGeometry], rows_bytes: int, together: bool) -> list[int]:
    """For how many rows of its filters each stack has room, where there are so many bytes for rows.

    Each has what it needs; what is left is shared by size, for all stacks pass by equally often.
    """
    layers = [geometry.filters for geometry in geometries]
    least = [least_room(layer) for layer in layers]
    more = [(layer.grid[0] - one) * row_bytes(layer) for layer, one in zip(layers, least, strict=True)]
    share = min(max(rows_bytes - least_bytes(geometries, together), 0) / max(sum(more), 1), 1.0)
    return [one + int(share * (layer.grid[0] - one)) for layer, one in zip(layers, least, strict=True)]


def disk_bytes(recipe: Recipe) -> int:
    """Bytes that the files take at most: those in use, and those of every checkpoint that is kept.

    Checkpoints share the files that did not change between them.
    """
    sizes = [geometry.filters.parameters * FLOAT_BYTES for geometry in recipe.stack_geometries()]
    generations = recipe.training.checkpoints_kept + 1
    if isinstance(recipe.training, JointTraining):
        return 2 * generations * sum(sizes)
    return sum(sizes) + (2 * generations - 1) * max(sizes)
