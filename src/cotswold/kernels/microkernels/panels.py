"""Panels: A of a k-block, packed so that the values of a tile are contiguous.

Knows: tiles of rows, one entry of a k-block. Does not know: layers, when packing pays.

If the rows of a tile are adjacent in memory and k is a page or more apart, a tile reads half a cache line of
every page, again for each tile of lanes. So a task packs A once per k-block: for each tile of rows one panel
``[k][row of the tile]``, in sequence. A tile reads a panel as it reads A, with the height of the tile as the
stride: the same values in the same order.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.microkernels.job import ROW_TILE
from cotswold.kernels.microkernels.kinds import Tile, row_block_sizes

PANEL_GAP = 16
"""Elements between two panels."""


def write_height(w: FunctionBuilder, tile: Tile, number: ir.Value) -> ir.Value:
    """Return the height of the tiles with this index of heights."""
    known = row_block_sizes(tile)
    found = integer(known[-1])
    for index, height in enumerate(known[:-1]):
        found = w.b.select(w.b.icmp_signed("==", number, integer(index)), integer(height), found)
    return found


def write_panels(module: ir.Module, lanes: Lanes, tile: Tile) -> ir.Function:
    """``panels(source, pitch, k, tiles, count, out)``: pack the A of each tile of rows to one panel.

    ``tiles`` is a table of `ROW_TILE`. See `panel_offset` for the addresses of panels.
    """
    function = ir.Function(
        module, ir.FunctionType(VOID, [POINTER, I64, I64, POINTER, I64, POINTER]), "panels"
    )
    function.linkage = "internal"
    function.attributes.add("noinline")
    source, pitch, k, tiles, count, out = function.args
    w = FunctionBuilder(function, lanes)
    origin = w.field(tiles, ROW_TILE["a"])
    with loop(w, count, tiles) as row_tile:
        (record,) = row_tile.values
        height, first = (
            write_height(w, tile, w.field(record, ROW_TILE["height"])),
            w.field(record, ROW_TILE["a"]),
        )
        panel = w.element_pointer(out, panel_offset(w, first, origin, k, row_tile.index))
        parts = range(0, tile.rows, lanes.count)
        masks = [w.lane_mask(_positive(w, w.b.sub(height, integer(begin)))) for begin in parts]
        with loop(w, k, w.element_pointer(source, first), panel) as turn:
            here, to = turn.values
            for begin, mask in zip(parts, masks, strict=True):
                w.masked_store(
                    w.element_pointer(to, begin), w.masked_load(w.element_pointer(here, begin), mask), mask
                )
            turn.next = [w.element_pointer(here, pitch), w.element_pointer(to, height)]
        row_tile.next = [w.slot(record, ROW_TILE.size)]
    w.b.ret_void()
    return function


def panel_offset(
    w: FunctionBuilder, first: ir.Value, origin: ir.Value, k: ir.Value, number: ir.Value
) -> ir.Value:
    """Offset of a tile's panel; gaps between panels keep them in different sets of a cache."""
    return w.b.add(w.b.mul(w.b.sub(first, origin), k), w.b.mul(number, integer(PANEL_GAP)))


def _positive(w: FunctionBuilder, value: ir.Value) -> ir.Value:
    return w.b.select(w.b.icmp_signed(">", value, integer(0)), value, integer(0))
