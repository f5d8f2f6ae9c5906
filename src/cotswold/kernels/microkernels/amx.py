"""The micro-kernel for bfloat16 on AMX: tile registers of pairs, multiplied into tile registers of sums.

Knows: the instructions, the layout of their operands. Does not know: layers, tasks.

A tile register has 16 rows of 64 bytes. One instruction adds to 16 x 16 float32 sums the products of 16 rows
of A and 16 lanes of B over 32 k: a row of A is 16 pairs of adjacent k, a row of B is one pair of each of 16
lanes. Four registers of sums, 32 rows x 32 lanes, share two registers of A and two of B. B is packed as for
other processors with pairs; A is packed by rows. Rows of zeros follow the last k. Subnormal numbers count as
0, and products of even and of odd k are summed apart within 32 k.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, declare, integer, loop
from cotswold.kernels.microkernels.half_units import UNIT_BYTES, Units, unit_at
from cotswold.kernels.microkernels.job import ENTRY
from cotswold.kernels.microkernels.kinds import AMX_TILE, row_block_sizes
from cotswold.kernels.microkernels.transpose import transposed

SIDE = 16
"""Rows of a tile register, lanes of its rows, and pairs of k in a row of A."""
ROW_PITCH = 512 + SIDE
"""Units between rows of packed A: a chunk whose entries have one k each, zeros, an odd number of lines."""
_SUMS, _A, _B = 0, 4, 6
"""First tile registers of sums, of A and of B."""
_I8, _I16, _I32 = (ir.IntType(bits) for bits in (8, 16, 32))


def _call(w: FunctionBuilder, name: str, *arguments: ir.Value) -> None:
    function = declare(w.function.module, f"llvm.x86.{name}", VOID, [one.type for one in arguments])
    w.b.call(function, arguments)


def write_configuration(w: FunctionBuilder) -> None:
    """Configure the tile registers of this thread: all eight whole."""
    module = w.function.module
    palette, row_bytes, rows = (
        [1, *[0] * 15],
        [SIDE * UNIT_BYTES, 0],
        [SIDE],
    )  # two bytes, one byte a register
    told = bytearray([*palette, *row_bytes * 8, *[0] * 16, *rows * 8, *[0] * 8])
    table = ir.GlobalVariable(module, ir.ArrayType(_I8, len(told)), "tile_configuration")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, told)
    _call(w, "ldtilecfg", table.bitcast(POINTER))


def write_release(w: FunctionBuilder) -> None:
    """Release the tile registers, so that the operating system need not save them."""
    _call(w, "tilerelease")


def write_tiles(module: ir.Module, units: Units) -> list[ir.Function]:
    """Generate the micro-kernels for every height and variant of the tile, by index."""
    high, low = ([write_amx_tile(module, units, rows, v) for v in (1, 2)] for rows in (2 * SIDE, SIDE))
    variants = [(one, wide, wide) for one, wide in (high, low)]  # with a mask and without are one function
    return [variant for height in row_block_sizes(AMX_TILE) for variant in variants[int(height <= SIDE)]]


def write_amx_tile(module: ir.Module, units: Units, height: int, vectors: int) -> ir.Function:
    """Generate one micro-kernel for at most ``height`` rows, and a number of vectors.

    Arguments: rows, rows of units, packed A, its stride in units, packed B, then as in `half_tile`.
    """
    kind = ir.FunctionType(
        VOID,
        [I64, I64, POINTER, I64, POINTER, POINTER, I64, POINTER, POINTER, POINTER, I64, I64, I64],
    )
    function = ir.Function(module, kind, f"amx_{height}x{vectors}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    rows, terms, a, a_pitch, packed, _, _, sums, c, offsets, last, keep, final = function.args
    w, pitch = FunctionBuilder(function, units.numbers), integer(vectors * SIDE * UNIT_BYTES)
    parts = [(down, across) for down in range(-(-height // SIDE)) for across in range(vectors)]

    def place(down: int, across: int) -> ir.Value:
        return unit_at(w, sums, (down * vectors * SIDE + across) * SIDE)

    with w.b.if_else(w.b.icmp_signed("!=", keep, integer(0))) as (later, first):
        with later:
            for down, across in parts:
                _call(w, "tileloadd64", _register(_SUMS, down, across), place(down, across), pitch)
        with first:
            for part in parts:
                _call(w, "tilezero", _register(_SUMS, *part))
    bytes_a, below = w.b.mul(a_pitch, integer(UNIT_BYTES)), w.b.mul(a_pitch, integer(SIDE))
    with loop(w, terms, a, packed, step=SIDE) as turn:
        row, column = turn.values
        for across in range(vectors):
            _call(w, "tileloadd64", _register(_B, 0, across), unit_at(w, column, across * SIDE), pitch)
        for down in range(-(-height // SIDE)):
            here = unit_at(w, row, below) if down else row
            _call(w, "tileloadd64", _register(_A, 0, down), here, bytes_a)
            for across in range(vectors):
                factors = _register(_A, 0, down), _register(_B, 0, across)
                _call(w, "tdpbf16ps", _register(_SUMS, down, across), *factors)
        turn.next = [unit_at(w, row, SIDE), unit_at(w, column, SIDE * vectors * SIDE)]
    for part in parts:
        _call(w, "tilestored64", _register(_SUMS, *part), place(*part), pitch)
    with w.b.if_then(w.b.icmp_signed("!=", final, integer(0))), loop(w, rows, sums) as turn:
        out = w.element_pointer(c, w.field(offsets, turn.index))
        for v in range(vectors):
            value = w.b.load(unit_at(w, turn.values[0], v * SIDE), typ=units.sums.type, align=4)
            mask = w.lane_mask(last) if v == vectors - 1 else None
            _store(w, w.element_pointer(out, v * SIDE), units.rounded(w, value), mask)
        turn.next = [unit_at(w, turn.values[0], vectors * SIDE)]
    w.b.ret_void()
    return function


def _register(first: int, down: int, across: int) -> ir.Constant:
    """Number of a tile register, as the instructions take it."""
    return ir.Constant(_I8, first + 2 * down + across)


def _masked(w: FunctionBuilder, place: ir.Value, mask: ir.Value) -> ir.Value:
    """Load the elements in a mask; the others are 0."""
    kind = ir.VectorType(_I16, mask.type.count)
    zeros = ir.Constant(kind, [0] * kind.count)
    name = f"llvm.masked.load.v{kind.count}i16.p0"
    function = declare(w.function.module, name, kind, [POINTER, mask.type, kind])
    return w.b.call(function, [place, mask, zeros])


def _store(w: FunctionBuilder, place: ir.Value, value: ir.Value, mask: ir.Value | None) -> None:
    if mask is None:
        w.b.store(value, place, align=2)
        return
    name = f"llvm.masked.store.v{SIDE}i16.p0"
    w.b.call(declare(w.function.module, name, VOID, [value.type, POINTER, mask.type]), [value, place, mask])


def write_packing_by_rows(module: ir.Module, units: Units, rows_adjacent: bool) -> ir.Function:
    """``pack(entries, count, source, pitch, rows, out)``: pack A by rows, at most a tile's.

    ``rows_adjacent``: rows are adjacent in A and k are ``pitch`` apart; else the reverse. Entries follow each
    other in a row, an odd k paired with 0; 16 units of zeros follow the last. Rows of ``out`` are `ROW_PITCH`
    apart. Returns the number of units in a row.
    """
    kind = ir.FunctionType(I64, [POINTER, I64, POINTER, I64, I64, POINTER])
    function = ir.Function(module, kind, "pack_by_rows")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, source, pitch, rows, out = function.args
    w = FunctionBuilder(function, units.numbers)
    with loop(w, count, integer(0)) as entry:
        record = ENTRY.record(w, entries, entry.index)
        first, k = w.element_pointer(source, w.field(record, ENTRY["a"])), w.field(record, ENTRY["k"])
        to = unit_at(w, out, entry.values[0])
        ahead = w.field(record, ENTRY["ahead"])
        (_pack_columns if rows_adjacent else _pack_rows)(w, first, k, pitch, rows, to, ahead)
        pairs = w.b.sdiv(w.b.add(k, integer(1)), integer(2))
        entry.next = [w.b.add(entry.values[0], pairs)]
    with loop(w, rows, unit_at(w, out, entry.values[0])) as row:
        w.b.store(ir.Constant(ir.VectorType(_I32, SIDE), [0] * SIDE), row.values[0], align=4)
        row.next = [unit_at(w, row.values[0], ROW_PITCH)]
    w.b.ret(entry.values[0])
    return function


def _pack_rows(w: FunctionBuilder, *operands: ir.Value) -> None:
    """Copy rows of adjacent k, with zeros up to a whole vector."""
    first, k, pitch, rows, out, ahead = operands
    wide = 2 * SIDE
    whole, rest = w.b.sdiv(k, integer(wide)), w.b.srem(k, integer(wide))
    with loop(w, rows, first, out) as row:
        with loop(w, whole, *row.values) as turn:
            here, to = turn.values
            w.prefetch_l2(w.element_pointer(here, ahead))
            w.b.store(w.b.load(here, typ=ir.VectorType(_I16, wide), align=2), to, align=4)
            turn.next = [w.element_pointer(here, wide), unit_at(w, to, SIDE)]
        here, to = turn.values
        with w.b.if_then(w.b.icmp_signed("!=", rest, integer(0))):
            w.prefetch_l2(w.element_pointer(here, ahead))
            w.b.store(_masked(w, here, _first(w, rest, wide)), to, align=4)
        row.next = [w.element_pointer(row.values[0], pitch), unit_at(w, row.values[1], ROW_PITCH)]


def _first(w: FunctionBuilder, count: ir.Value, of: int) -> ir.Value:
    """Mask of the first ``count`` of some elements."""
    kind = ir.VectorType(_I16, of)
    one = w.b.insert_element(ir.Constant(kind, ir.Undefined), w.b.trunc(count, _I16), ir.Constant(_I32, 0))
    spread = w.shuffle(one, ir.Constant(kind, ir.Undefined), [0] * of)
    return w.b.icmp_signed("<", ir.Constant(kind, list(range(of))), spread)


def _pack_columns(w: FunctionBuilder, *operands: ir.Value) -> None:
    """Transpose squares of pairs of k, with zeros up to a whole square."""
    first, k, pitch, rows, out, ahead = operands
    wide = 2 * SIDE
    with loop(w, rows, step=SIDE) as part:
        mask = _first(w, w.min_int(w.b.sub(rows, part.index), integer(SIDE)), SIDE)
        place = w.element_pointer(first, part.index)
        row = unit_at(w, out, w.b.mul(part.index, integer(ROW_PITCH)))
        with loop(w, w.b.sdiv(k, integer(wide)), place, row) as turn:
            here, to = turn.values
            places = [w.element_pointer(here, w.b.mul(pitch, integer(i))) for i in range(wide)]
            _pack_square(w, places, [mask] * wide, to, ahead)
            turn.next = [w.element_pointer(here, w.b.mul(pitch, integer(wide))), unit_at(w, to, SIDE)]
        here, to = turn.values
        rest, none = w.b.srem(k, integer(wide)), ir.Constant(mask.type, [0] * SIDE)
        with w.b.if_then(w.b.icmp_signed("!=", rest, integer(0))):
            last = w.b.sub(rest, integer(1))
            places = [
                w.element_pointer(here, w.b.mul(pitch, w.min_int(integer(i), last))) for i in range(wide)
            ]
            exists = [w.b.icmp_signed("<", integer(i), rest) for i in range(wide)]
            _pack_square(w, places, [w.b.select(one, mask, none) for one in exists], to, ahead)


def _pack_square(
    w: FunctionBuilder, places: list[ir.Value], masks: list[ir.Value], out: ir.Value, ahead: ir.Value
) -> None:
    """Pack some rows of each of 32 k."""
    numbers = []
    for place, mask in zip(places, masks, strict=True):
        w.prefetch_l2(w.element_pointer(place, ahead))
        numbers.append(_masked(w, place, mask))
    for i, value in enumerate(transposed(w, _pairs(w, numbers))):
        w.b.store(value, unit_at(w, out, i * ROW_PITCH), align=4)


def _pairs(w: FunctionBuilder, numbers: Sequence[ir.Value]) -> list[ir.Value]:
    """Interleave each two vectors of 16-bit elements as one of units."""
    order, kind = [n // 2 + SIDE * (n % 2) for n in range(2 * SIDE)], ir.VectorType(_I32, SIDE)
    return [
        w.b.bitcast(w.shuffle(even, odd, order), kind)
        for even, odd in zip(numbers[::2], numbers[1::2], strict=True)
    ]


def write_zeros(w: FunctionBuilder, end: ir.Value, pitch: ir.Value) -> None:
    """Write rows of zeros after packed B, enough for a tile register; ``pitch`` is in units."""
    with loop(w, w.b.mul(pitch, integer(SIDE - 1)), step=SIDE) as turn:
        w.b.store(ir.Constant(ir.VectorType(_I32, SIDE), [0] * SIDE), unit_at(w, end, turn.index), align=4)
