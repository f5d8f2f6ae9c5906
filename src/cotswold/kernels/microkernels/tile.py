"""The micro-kernel: one register tile of a batch-reduce matrix product.

Knows: rows and vectors of a tile, the addresses of its operands. Does not know: layers, threads.

A tile is ``rows x vectors`` accumulators. For every entry of a list and every k of the entry it reads
``vectors`` vectors of B and one element of A per row, and adds their products:

    C[row, lane] += sum over entries, then over k, of A[row, k] B[k, lane]

Lanes are always independent outputs. So an output is a chain of fused multiply-adds in the order of the list.
The chain starts at 0 and is added to C at its end, for any tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import (
    I64,
    POINTER,
    VOID,
    FunctionBuilder,
    Lanes,
    do_while,
    integer,
    loop,
)
from cotswold.kernels.microkernels.activation import write_activation

ENTRY_FIELDS = 4
"""Integers of an entry: its offset in A, its offset in B, its k, and its prefetch distance in A."""
LINE_BYTES = 64
"""Bytes of a cache line."""
GROUP = 4
"""Rows addressed from one pointer: at 0, 1, 2 and 3 strides of A."""


@dataclass(frozen=True)
class Tile:
    """Size of a tile, or of the largest tile of a kernel: rows and vectors."""

    rows: int
    vectors: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.vectors}"


@dataclass(frozen=True)
class TileConfig:
    """Layout of A, and the epilogue of a tile.

    ``a_rows_adjacent``: rows of A are contiguous and k is a stride apart; else k is contiguous.
    ``epilogue``: the activation of the complete sums, after a bias per row is added; '' for none.
    """

    a_rows_adjacent: bool
    epilogue: str = ""


def row_block_sizes(tile: Tile) -> tuple[int, ...]:
    """Heights of a kernel's tiles, its own and smaller ones, so that few tiles cover any number of rows."""
    return tuple(sorted({tile.rows, *(h for h in (8, 4, 2, 1) if h < tile.rows)}, reverse=True))


def write_tile(
    module: ir.Module, name: str, lanes: Lanes, shape: Tile, config: TileConfig, masked: bool
) -> ir.Function:
    """Generate one micro-kernel; ``masked``: only the first lanes of the last vector exist.

    Arguments: entries; number of entries; A; stride of A; the prefetch distance in A, and a flag: whether
    each entry's own prefetch distance is added; B; stride of B; C; the rows' offsets in C; lanes in the last
    vector; whether C is added to (not 0) or overwritten (0); the address of the rows' biases, or 0 if sums
    are not complete (used if there is an ``epilogue``); the stride of the prefetched rows (used if rows are
    contiguous).
    """
    kind = ir.FunctionType(
        VOID,
        [POINTER, I64, POINTER, I64, I64, I64, POINTER, I64, POINTER, POINTER, I64, I64, POINTER, I64],
    )
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, a, a_pitch, towards, onward, b, b_pitch, c, offsets, last, keep, biases, next_pitch = (
        function.args
    )
    w = FunctionBuilder(function, lanes)
    mask = w.lane_mask(last) if masked else None
    places = [
        [
            w.element_pointer(w.element_pointer(c, w.field(offsets, row)), v * lanes.count)
            for v in range(shape.vectors)
        ]
        for row in range(shape.rows)
    ]

    def load(pointer: ir.Value, vector: int) -> ir.Value:
        return w.masked_load(pointer, mask) if mask and vector == shape.vectors - 1 else w.load(pointer)

    flat = [(row, v) for row in range(shape.rows) for v in range(shape.vectors)]
    for row, v in flat:
        w.prefetch_for_write(places[row][v])

    thrice = w.b.mul(a_pitch, integer(3))
    steps = [integer(0), a_pitch, w.b.shl(a_pitch, integer(1)), thrice]
    four = w.b.shl(a_pitch, integer(2))
    with loop(w, count, *[lanes.zero] * len(flat)) as entry:
        record = w.slot(entries, w.b.mul(entry.index, integer(ENTRY_FIELDS)))
        first_a, first_b = w.element_pointer(a, w.field(record, 0)), w.element_pointer(b, w.field(record, 1))
        groups = [first_a]
        ahead = w.b.add(towards, w.b.mul(onward, w.field(record, 3)))
        upcoming = w.element_pointer(first_a, ahead)
        if not config.a_rows_adjacent:
            for _ in range(GROUP, shape.rows, GROUP):
                groups.append(w.element_pointer(groups[-1], four))
        with do_while(w, w.field(record, 2), first_b, upcoming, *groups, *entry.values) as turn:
            here, fetched, *rest = turn.values
            pointers, sums = rest[: len(groups)], rest[len(groups) :]
            vectors = [load(w.element_pointer(here, v * lanes.count), v) for v in range(shape.vectors)]
            for row in range(shape.rows):
                place = (
                    w.element_pointer(pointers[0], row)
                    if config.a_rows_adjacent
                    else w.element_pointer(pointers[row // GROUP], steps[row % GROUP])
                )
                factor = w.load_broadcast(place)
                for v in range(shape.vectors):
                    i = row * shape.vectors + v
                    sums[i] = w.fma(factor, vectors[v], sums[i])
            if config.a_rows_adjacent:
                w.prefetch_l1(fetched)
            else:
                # one line per iteration: the low bits of the iterations left select a row, the others a line
                # of it
                before = w.b.sub(turn.index, integer(1))
                line = w.b.and_(before, integer(-LINE_BYTES // lanes.scalar_bytes))
                number = w.b.and_(
                    before, integer(min(_power(shape.rows), LINE_BYTES // lanes.scalar_bytes) - 1)
                )
                w.prefetch_l1(w.element_pointer(w.element_pointer(upcoming, w.b.mul(number, a_pitch)), line))
            further = a_pitch if config.a_rows_adjacent else 1
            following = w.element_pointer(fetched, next_pitch) if config.a_rows_adjacent else fetched
            turn.next = [
                w.element_pointer(here, b_pitch),
                following,
                *(w.element_pointer(p, further) for p in pointers),
                *sums,
            ]
        entry.next = turn.values[2 + len(groups) :]

    def put(row: int, v: int, value: ir.Value) -> None:
        if mask and v == shape.vectors - 1:
            w.masked_store(places[row][v], value, mask)
        else:
            w.store(places[row][v], value)

    sums = entry.values
    adding = w.b.icmp_signed("!=", keep, integer(0))
    start = w.b.block
    with w.b.if_then(adding):
        added = [w.b.fadd(load(places[row][v], v), value) for (row, v), value in zip(flat, sums, strict=True)]
        after = w.b.block
    sums = _merge_phis(w, (sums, start), (added, after))
    if config.epilogue:
        sums = _finished(w, config, biases, flat, sums)
    for (row, v), value in zip(flat, sums, strict=True):
        put(row, v, value)
    w.b.ret_void()
    return function


def _finished(
    w: FunctionBuilder,
    config: TileConfig,
    biases: ir.Value,
    flat: list[tuple[int, int]],
    sums: list[ir.Value],
) -> list[ir.Value]:
    """Apply biases and the activation to the sums, if ``biases`` is not 0."""
    before = w.b.block
    with w.b.if_then(w.b.icmp_unsigned("!=", w.b.ptrtoint(biases, I64), integer(0))):
        rows = {row: w.load_broadcast(w.element_pointer(biases, row)) for row, _ in flat}
        done = [
            write_activation(config.epilogue, w, w.b.fadd(value, rows[row]))
            for (row, _), value in zip(flat, sums, strict=True)
        ]
        after = w.b.block
    return _merge_phis(w, (sums, before), (done, after))


def _merge_phis(
    w: FunctionBuilder, one: tuple[list[ir.Value], ir.Block], other: tuple[list[ir.Value], ir.Block]
) -> list[ir.Value]:
    """Merge values from two predecessor blocks by phis."""
    found = []
    for values in zip(one[0], other[0], strict=True):
        phi = w.b.phi(w.lanes.type)
        for value, block in zip(values, (one[1], other[1]), strict=True):
            phi.add_incoming(value, block)
        found.append(phi)
    return found


def _power(number: int) -> int:
    """Return the least power of 2 that is at least ``number``."""
    return 1 << (number - 1).bit_length()
