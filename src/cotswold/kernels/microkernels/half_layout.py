"""Sizes of the packed operands and sums of a half-precision product in a thread's scratch.

Knows: which operands are packed, how much at a time, the tables of a plan. Does not know: code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cotswold.kernels.microkernels import amx
from cotswold.kernels.microkernels.half_units import UNIT_NUMBERS, WIDENED_PITCH, Units
from cotswold.kernels.microkernels.job import ENTRY, TASK
from cotswold.kernels.microkernels.kinds import ProductKind, Tile
from cotswold.kernels.microkernels.tile import LINE_BYTES

CHUNK = 1024
"""Approximate k of a chunk of pairs: its packed values fit the second-level cache."""
LANE_TILES = 4
"""Tiles of lanes whose B is packed at a time."""
PANEL_ROWS = 128
"""Approximate rows of A packed at a time."""
UNITS_A_LINE = LINE_BYTES // 4


def chunk(units: Units) -> int:
    """Approximate k of a chunk; fewer for AMX and single numbers, so that B of a tile stays in cache."""
    return CHUNK // (2 if units.amx else 1 if units.paired else 4)


def packs_a(kind: ProductKind, units: Units) -> bool:
    """True if A is packed; else it is read in place."""
    return packs_rows(kind, units) or (kind.a_rows_adjacent and (units.paired or not kind.unpack_c))


def packs_rows(kind: ProductKind, units: Units) -> bool:
    """True if A is packed by rows: for AMX, and where widening costs most, for float16 in short vectors."""
    widened = units.dtype == "float16" and units.lanes < UNITS_A_LINE
    return units.amx or (not kind.a_rows_adjacent and widened)


def row_pitch(units: Units) -> int:
    """Units between rows of A packed by rows."""
    return amx.ROW_PITCH if units.amx else WIDENED_PITCH


def lane_tiles(kind: ProductKind, units: Units) -> int:
    """Tiles of lanes whose B is packed at a time; one for pairs if A is not packed."""
    if packs_rows(kind, units):
        return LANE_TILES if units.amx else 2 * LANE_TILES
    return LANE_TILES if kind.a_rows_adjacent or not units.paired else 1


def panel_tiles(tile: Tile) -> int:
    """Tiles of rows packed at a time."""
    return max(1, PANEL_ROWS // tile.rows)


def panel_pitch(tile: Tile) -> int:
    """Units between rows of packed A; an odd number of lines, so that rows use all sets of a cache."""
    return (-(-panel_tiles(tile) * tile.rows // UNITS_A_LINE) | 1) * UNITS_A_LINE


def scratch(
    tables: tuple[NDArray[np.int64], NDArray[np.int64]],
    kind: ProductKind,
    units: Units,
    tile: Tile,
    chunk: int,
    transposed: int,
) -> tuple[int, int, int, int]:
    """``(size, offset of packed A, of sums, of a transposed C)`` in a thread's scratch, in elements.

    ``tables`` are tasks and entries, ``chunk`` counts entries, ``transposed`` is the size of a transposed C.
    B is at offset 0.
    """
    if not len(tables[0]):
        return 0, 0, 0, 0
    entries, tiles = (int(tables[0][:, one].max()) for one in (TASK["entries"], TASK["row_tiles"]))
    longest = int(tables[1][:, ENTRY["k"]].max(initial=0))
    rows = min(chunk, entries) * -(-longest // units.k)
    at_once, lanes = lane_tiles(kind, units), units.lanes
    packed_b = at_once * (rows + lanes) * tile.vectors * lanes * UNIT_NUMBERS
    packed_a, pitch = 0, row_pitch(units)
    if packs_rows(kind, units):
        assert rows + lanes <= pitch, f"{rows} k in a chunk"
        packed_a = min(panel_tiles(tile), tiles) * tile.rows * pitch * UNIT_NUMBERS
    elif packs_a(kind, units):
        packed_a = rows * panel_pitch(tile) * UNIT_NUMBERS
    kept = at_once * tiles if entries > chunk else int(units.amx)
    sums = kept * tile.rows * tile.vectors * lanes * UNIT_NUMBERS
    end = packed_b + packed_a + sums
    return end + (transposed if kind.unpack_c else 0), packed_b, packed_b + packed_a, end
