"""Candidate tiles of the Triton kernels.

Knows: sizes of tiles, the tiles that fit a layer, classes of batches. Does not know: Triton, tensors, values.
The tiles below follow from sizes of registers and shared memory, and from assembly for compute capability 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from cotswold.geometry import BlockLocal, Window

LEAST_SIDE = 16
"""Least side of a tile that every tensor core supports."""
MAX_POSITIONS = 128
"""Maximum places of the map in one cell of the adjoint."""
DEPTH_BYTES = 128
"""Bytes of terms that a tensor core reads from shared memory at a time."""
USUAL_DEPTH = 32
"""Depth for which every dtype has tiles."""
MOST_IMAGES = 512
"""Larger batches form one class."""


@dataclass(frozen=True)
class ProgramTile:
    """Sides of a tile by name, warps that share it, and pipeline stages (loads in flight)."""

    sides: Mapping[str, int] = field(hash=False)
    warps: int
    stages: int


PRODUCT = (
    ProgramTile({"NEURONS": 128, "IMAGES": 128, "DEPTH": 16}, 8, 3),
    ProgramTile({"NEURONS": 128, "IMAGES": 128, "DEPTH": 64}, 8, 3),
    ProgramTile({"NEURONS": 128, "IMAGES": 64, "DEPTH": 32}, 8, 3),
    ProgramTile({"NEURONS": 128, "IMAGES": 64, "DEPTH": 64}, 4, 4),
    ProgramTile({"NEURONS": 128, "IMAGES": 32, "DEPTH": 32}, 4, 4),
    ProgramTile({"NEURONS": 128, "IMAGES": 32, "DEPTH": 64}, 4, 4),
    ProgramTile({"NEURONS": 64, "IMAGES": 128, "DEPTH": 64}, 4, 4),
    ProgramTile({"NEURONS": 64, "IMAGES": 64, "DEPTH": 16}, 4, 3),
    ProgramTile({"NEURONS": 64, "IMAGES": 32, "DEPTH": 32}, 4, 4),
    ProgramTile({"NEURONS": 32, "IMAGES": 128, "DEPTH": 32}, 4, 3),
    ProgramTile({"NEURONS": 32, "IMAGES": 32, "DEPTH": 32}, 4, 4),
    ProgramTile({"NEURONS": 16, "IMAGES": 64, "DEPTH": 32}, 2, 4),
    ProgramTile({"NEURONS": 16, "IMAGES": 16, "DEPTH": 32}, 1, 4),
)
ADJOINT = (
    ProgramTile({"IMAGES": 128, "DEPTH": 16}, 8, 3),
    ProgramTile({"IMAGES": 128, "DEPTH": 32}, 4, 4),
    ProgramTile({"IMAGES": 128, "DEPTH": 64}, 4, 4),
    ProgramTile({"IMAGES": 64, "DEPTH": 16}, 4, 3),
    ProgramTile({"IMAGES": 64, "DEPTH": 32}, 8, 3),
    ProgramTile({"IMAGES": 64, "DEPTH": 64}, 4, 4),
    ProgramTile({"IMAGES": 32, "DEPTH": 32}, 4, 3),
    ProgramTile({"IMAGES": 32, "DEPTH": 64}, 4, 4),
    ProgramTile({"IMAGES": 16, "DEPTH": 16}, 2, 4),
)
OUTER = (
    ProgramTile({"PLACES": 128, "NEURONS": 128, "DEPTH": 16}, 8, 3),
    ProgramTile({"PLACES": 128, "NEURONS": 128, "DEPTH": 64}, 8, 3),
    ProgramTile({"PLACES": 64, "NEURONS": 128, "DEPTH": 32}, 8, 3),
    ProgramTile({"PLACES": 64, "NEURONS": 128, "DEPTH": 64}, 4, 3),
    ProgramTile({"PLACES": 64, "NEURONS": 64, "DEPTH": 16}, 4, 3),
    ProgramTile({"PLACES": 64, "NEURONS": 32, "DEPTH": 32}, 4, 3),
    ProgramTile({"PLACES": 128, "NEURONS": 16, "DEPTH": 32}, 4, 3),
    ProgramTile({"PLACES": 32, "NEURONS": 32, "DEPTH": 32}, 2, 4),
    ProgramTile({"PLACES": 16, "NEURONS": 16, "DEPTH": 16}, 1, 4),
)


def power_of_two(count: int) -> int:
    """Return the least power of two that is at least ``count``."""
    return 1 << max(count - 1, 0).bit_length()


def image_class(images: int) -> int:
    """Return the class of a batch that shares one tile: 2^k or 3 * 2^k images, at most 512."""
    least = max(power_of_two(min(images, MOST_IMAGES)), LEAST_SIDE)
    return least * 3 // 4 if 0 < images <= least * 3 // 4 and least > LEAST_SIDE else least


def deepest(itemsize: int) -> int:
    """Return the largest depth of a tile for elements of this size; more only takes time to compile."""
    return max(USUAL_DEPTH, DEPTH_BYTES // itemsize)


def fitting_tiles(tiles: Iterable[ProgramTile], extents: Mapping[str, int]) -> tuple[ProgramTile, ...]:
    """Return the tiles with no side above the power of two that holds its extent; at least the smallest."""
    most = {name: max(power_of_two(extent), LEAST_SIDE) for name, extent in extents.items()}
    tiles = tuple(tiles)
    chosen = tuple(tile for tile in tiles if all(tile.sides[name] <= most[name] for name in most))
    return chosen or tiles[-1:]


@dataclass(frozen=True)
class MapCell:
    """Part of a map that one program of the adjoint writes: rows, and columns times channels."""

    rows: int
    wide: int

    @property
    def positions(self) -> int:
        """Places of the tile that holds the cell, a power of two."""
        return max(power_of_two(self.rows * self.wide), LEAST_SIDE)

    def is_whole(self, layer: BlockLocal) -> bool:
        """True if a block that meets any cell covers all of it, except for places outside the map."""
        step = layer.x.stride * layer.input.channels
        inside = layer.y.stride % self.rows == 0 and step % self.wide == 0
        return inside and layer.y.size % layer.y.stride == 0 and layer.x.size % layer.x.stride == 0

    def count(self, layer: BlockLocal) -> int:
        """Return the number of cells that cover the map, counted from the corner of the padding."""
        low_wide = layer.x.pad_before * layer.input.channels
        right = (layer.input.width + layer.x.pad_before) * layer.input.channels
        down = -(-(layer.input.height + layer.y.pad_before) // self.rows) - layer.y.pad_before // self.rows
        return down * (-(-right // self.wide) - low_wide // self.wide)


def _covered_fraction(window: Window, outputs: int, extent: float) -> float:
    """Fraction of a run of ``extent`` places that a window covers, averaged over the windows that meet it."""
    overlap = -(-window.size // window.stride)
    meeting = min(outputs, overlap + -(-int(extent) // window.stride) - 1)
    return min(1.0, min(outputs, window.size / window.stride) / max(meeting, 1))


@lru_cache(maxsize=256)
def best_cell(layer: BlockLocal) -> MapCell:
    """Return the cell with least waste: few blocks that meet only part of it, few unused places of the tile.

    Cells of one step by one step are met by whole blocks; larger ones read each neuron for more places.
    """
    channels, step = layer.input.channels, layer.x.stride * layer.input.channels
    down = [rows for rows in range(1, layer.y.stride + 1) if layer.y.stride % rows == 0]
    down += [layer.y.stride * steps for steps in (2, 4, 8)]
    across = [step * steps for steps in range(1, MAX_POSITIONS // step + 1)]
    across += [side for side in (16, 32, 64, 128) if side < step]

    def worth(cell: MapCell) -> float:
        filled = cell.rows * cell.wide / cell.positions
        covered = _covered_fraction(layer.y, layer.grid[0], cell.rows)
        covered *= _covered_fraction(layer.x, layer.grid[1], max(cell.wide / channels, 1))
        return filled * covered * cell.positions / (cell.positions + 2 * LEAST_SIDE)

    cells = [MapCell(rows, wide) for rows, wide in product(down, across) if rows * wide <= MAX_POSITIONS]
    return max(cells or [MapCell(1, LEAST_SIDE)], key=worth)
