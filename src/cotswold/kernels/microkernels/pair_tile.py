"""The micro-kernel for bfloat16: one register tile of float32 sums of products of pairs.

Knows: rows and vectors of a tile, how its operands are addressed. Does not know: layers, how pairs are made.

It is `tile` with two k a turn: B is packed, whole vectors of pairs one after the other. Where rows of A
adjoin, A is packed too; else pairs of k are neighbours in A already. Sums stay in float32, in scratch where
they pass through memory between two calls, and are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from cotswold.kernels.compile.emit import INT, NOTHING, POINTER, Writer, integer, loop
from cotswold.kernels.microkernels.pairs import (
    LANES,
    NUMBERS,
    SUMS,
    add_products,
    pair_at,
    read_pairs,
    read_sums,
    spread_pair,
    spread_single,
    write_rounded,
    write_sums,
)
from cotswold.kernels.microkernels.tile import ENTRY_FIELDS, GROUP, LINE_BYTES, Tile

_NUMBERS_A_LINE = LINE_BYTES // NUMBERS.scalar_bytes


def write_pair_tile(
    module: ir.Module, name: str, shape: Tile, rows_adjoin: bool, masked: bool
) -> ir.Function:
    """Write one micro-kernel; ``masked``: of the last vector only the first lanes exist in C.

    Its arguments: entries, their number (where rows adjoin: what is needed later of A, rows of pairs), A, its
    pitch (in pairs, where rows adjoin), packed B, sums in scratch, C, the rows' offsets in C, lanes in the
    last vector, whether sums begin in scratch (not 0) or at 0, whether they are finished, for C, (not 0) or
    go to scratch.
    """
    kind = ir.FunctionType(
        NOTHING, [POINTER, INT, POINTER, INT, POINTER, POINTER, POINTER, POINTER, INT, INT, INT]
    )
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, a, a_pitch, b, scratch, c, offsets, last, keep, final = function.args
    w = Writer(function, NUMBERS)
    flat = [(row, v) for row in range(shape.rows) for v in range(shape.vectors)]
    begun = _begun(w, shape, scratch, keep)
    walk = _adjoining if rows_adjoin else _by_entries
    sums = walk(w, shape, (entries, count, a, a_pitch, b), begun)
    with w.b.if_else(w.b.icmp_signed("!=", final, integer(0))) as (finished, unfinished):
        with finished:
            mask = w.first_lanes(last) if masked else None
            for (row, v), value in zip(flat, sums, strict=True):
                place = w.at(w.at(c, w.field(offsets, row)), v * LANES)
                write_rounded(w, place, value, mask if v == shape.vectors - 1 else None)
        with unfinished:
            for i, value in enumerate(sums):
                write_sums(w, pair_at(w, scratch, i * LANES), value)
    w.b.ret_void()
    return function


def _begun(w: Writer, shape: Tile, scratch: ir.Value, keep: ir.Value) -> list[ir.Value]:
    """The sums of the call before, or zeros."""
    count = shape.rows * shape.vectors
    before = w.b.block
    with w.b.if_then(w.b.icmp_signed("!=", keep, integer(0))):
        old = [read_sums(w, pair_at(w, scratch, i * LANES)) for i in range(count)]
        after = w.b.block
    found = []
    for value in old:
        phi = w.b.phi(SUMS.type)
        phi.add_incoming(SUMS.zero, before)
        phi.add_incoming(value, after)
        found.append(phi)
    return found


Operands = tuple[ir.Value, ir.Value, ir.Value, ir.Value, ir.Value]
"""The first arguments of a tile."""


def _adjoining(w: Writer, shape: Tile, operands: Operands, sums: list[ir.Value]) -> list[ir.Value]:
    """The sums over all rows of packed pairs."""
    ahead, pairs, a, a_pitch, b = operands
    with loop(w, pairs, b, a, ahead, *sums) as turn:
        here, row_pairs, later, *rest = turn.values
        w.fetch_far(later)
        vectors = _row(w, here, shape)
        places = [pair_at(w, row_pairs, row) for row in range(shape.rows)]
        rest = _added(w, shape, rest, vectors, lambda row: spread_pair(w, places[row]))
        onward = pair_at(w, here, shape.vectors * LANES), pair_at(w, row_pairs, a_pitch)
        turn.next = [*onward, pair_at(w, later, shape.rows), *rest]
    return turn.values[3:]


def _by_entries(w: Writer, shape: Tile, operands: Operands, sums: list[ir.Value]) -> list[ir.Value]:
    """The sums over entries, and over pairs of k that are neighbours in A."""
    entries, count, a, a_pitch, b = operands
    thrice = w.b.mul(a_pitch, integer(3))
    steps = [integer(0), a_pitch, w.b.shl(a_pitch, integer(1)), thrice]
    four = w.b.shl(a_pitch, integer(2))

    def place(groups: list[ir.Value], row: int) -> ir.Value:
        return w.at(groups[row // GROUP], steps[row % GROUP])

    with loop(w, count, b, *sums) as entry:
        record = w.slot(entries, w.b.mul(entry.index, integer(ENTRY_FIELDS)))
        k, ahead = w.field(record, 2), w.field(record, 3)
        groups = [w.at(a, w.field(record, 0))]
        for _ in range(GROUP, shape.rows, GROUP):
            groups.append(w.at(groups[-1], four))
        with loop(w, k, step=_NUMBERS_A_LINE) as line:
            for row in range(shape.rows):
                w.fetch(w.at(w.at(place(groups, row), ahead), line.index))
        with loop(w, w.b.ashr(k, integer(1)), *groups, *entry.values) as turn:
            now, (here, *rest) = turn.values[: len(groups)], turn.values[len(groups) :]
            vectors = _row(w, here, shape)
            rest = _added(w, shape, rest, vectors, lambda row: spread_pair(w, place(now, row)))
            turn.next = [*(w.at(p, 2) for p in now), pair_at(w, here, shape.vectors * LANES), *rest]
        now, values = turn.values[: len(groups)], turn.values[len(groups) :]
        before = w.b.block
        with w.b.if_then(w.b.icmp_signed("!=", w.b.and_(k, integer(1)), integer(0))):
            here, *rest = values
            vectors = _row(w, here, shape)
            rest = _added(w, shape, rest, vectors, lambda row: spread_single(w, place(now, row)))
            odd = [pair_at(w, here, shape.vectors * LANES), *rest]
            after = w.b.block
        entry.next = []
        for value, other in zip(values, odd, strict=True):
            phi = w.b.phi(value.type)
            phi.add_incoming(value, before)
            phi.add_incoming(other, after)
            entry.next.append(phi)
    return entry.values[1:]


def _row(w: Writer, pointer: ir.Value, shape: Tile) -> list[ir.Value]:
    """A row of packed pairs of B."""
    return [read_pairs(w, pair_at(w, pointer, v * LANES)) for v in range(shape.vectors)]


def _added(
    w: Writer,
    shape: Tile,
    sums: list[ir.Value],
    vectors: list[ir.Value],
    factor: Callable[[int], ir.Value],
) -> list[ir.Value]:
    """Sums and the products of a row of B with the factors of all rows."""
    found = list(sums)
    for row in range(shape.rows):
        one = factor(row)
        for v in range(shape.vectors):
            i = row * shape.vectors + v
            found[i] = add_products(w, found[i], one, vectors[v])
    return found
