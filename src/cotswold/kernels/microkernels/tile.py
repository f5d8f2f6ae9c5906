"""The micro-kernel: one register tile of a batch-reduce matrix product.

Knows: rows and vectors of a tile, the addresses of its operands. Does not know: layers, threads.

A tile is ``rows x vectors`` accumulators. For every entry of a list and every k of the entry it reads
``vectors`` vectors of B and one element of A per row, and adds their products:

    C[row, lane] += sum over entries, then over k, of A[row, k] B[k, lane]

Lanes are always independent outputs. So an output is a chain of fused multiply-adds in the order of the list.
The chain starts at 0 and is added to C at its end, for any tile.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from cotswold.kernels.compile.emit import (
    BYTES,
    I64,
    POINTER,
    VOID,
    FunctionBuilder,
    Lanes,
    integer,
    loop,
)
from cotswold.kernels.microkernels.activation import write_activation
from cotswold.kernels.microkernels.job import ENTRY
from cotswold.kernels.microkernels.kinds import Tile, TileConfig

LINE_BYTES = 64
"""Bytes of a cache line."""
GROUP = 4
"""Rows addressed from one pointer: at 0, 1, 2 and 3 strides of A."""


def write_tile(
    module: ir.Module, name: str, lanes: Lanes, shape: Tile, config: TileConfig, masked: bool
) -> ir.Function:
    """Generate one micro-kernel; ``masked``: only the first lanes of the last vector exist.

    Arguments: entries; number of entries; A; stride of A; B; stride of B; the prefetch distance in A, and a
    flag: whether each entry's own prefetch distance is added; C; the rows' offsets in C; lanes in the last
    vector; whether C is added to (not 0) or overwritten (0); the address of the rows' biases, or 0 if sums
    are not complete (used if there is an ``epilogue``); the stride of the prefetched rows (used if rows are
    contiguous).
    """
    # the first six arguments are in registers; LLVM may read any other from the stack in every iteration
    kind = ir.FunctionType(
        VOID,
        [POINTER, I64, POINTER, I64, POINTER, I64, I64, I64, POINTER, POINTER, I64, I64, POINTER, I64],
    )
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, a, a_pitch, b, b_pitch, towards, onward, c, offsets, last, keep, biases, next_pitch = (
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

    terms = TermSum(w, shape, config, load, (a_pitch, b_pitch, next_pitch))
    with loop(w, count, *[lanes.zero] * len(flat)) as entry:
        record = ENTRY.record(w, entries, entry.index)
        first_a, first_b = (
            w.element_pointer(a, w.field(record, ENTRY["a"])),
            w.element_pointer(b, w.field(record, ENTRY["b"])),
        )
        ahead = w.b.add(towards, w.b.mul(onward, w.field(record, ENTRY["ahead"])))
        entry.next = terms.write(first_a, first_b, w.field(record, ENTRY["k"]), ahead, entry.values)

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


class TermSum:
    """Code generator of the sum over the k of one entry, in order, `GROUP` of them per iteration."""

    def __init__(
        self,
        w: FunctionBuilder,
        shape: Tile,
        config: TileConfig,
        load: Callable[[ir.Value, int], ir.Value],
        pitches: tuple[ir.Value, ir.Value, ir.Value],
    ) -> None:
        self.w, self.shape, self.config, self.load, self.pitches = w, shape, config, load, pitches
        # multiples of each stride: an address is a pointer, one of these, and a constant
        self.steps = [
            [integer(0), pitch, w.b.shl(pitch, integer(1)), w.b.mul(pitch, integer(3))] for pitch in pitches
        ]
        is_arm = w.function.module.triple.startswith("aarch64")
        # ARM has no such addresses; and with one vector LLVM takes a register for each factor
        self.unrolled = 1 if shape.vectors == 1 or is_arm else GROUP
        # of 12 rows LLVM would load seven factors first, and has no registers for them
        is_high = shape.rows > 2 * GROUP and shape.vectors > 1 and not config.a_rows_adjacent
        self.rows_at_once = 2 if is_arm and is_high else shape.rows

    def write(
        self, a: ir.Value, b: ir.Value, k: ir.Value, ahead: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Return the sums after all ``k``; ``ahead`` is the prefetch distance in A."""
        w, (a_pitch, _, _) = self.w, self.pitches
        pointers = [b, a]
        if self.config.a_rows_adjacent:
            pointers.append(w.element_pointer(a, ahead))
        else:
            for _ in range(GROUP, self.shape.rows, GROUP):
                pointers.append(w.element_pointer(pointers[-1], w.b.shl(a_pitch, integer(2))))
        for at_once in dict.fromkeys((self.unrolled, 1)):
            with loop(w, w.b.sdiv(k, integer(at_once)), *pointers, *sums) as turn:
                here, sums = turn.values[: len(pointers)], turn.values[len(pointers) :]
                for number in range(at_once):
                    if number:  # LLVM would load the factors of all k first, and has no registers for them
                        *here, sums[-1] = w.in_order(*here, sums[-1])
                    sums = self._add_products(here, number, sums)
                if at_once == self.unrolled and not self.config.a_rows_adjacent:
                    self._prefetch_rows(here[1:], turn.index, ahead)
                turn.next = [*self._next(here, at_once), *sums]
            pointers, sums = turn.values[: len(pointers)], turn.values[len(pointers) :]
            k = w.b.srem(k, integer(at_once))
        return sums

    def _add_products(self, here: list[ir.Value], k: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Add the products of one k, counted from the pointers."""
        w, shape, found = self.w, self.shape, list(sums)
        a_steps, b_steps, next_steps = self.steps
        b, *a = here
        row_of_b = w.element_pointer(b, b_steps[k])
        vectors = [self.load(w.element_pointer(row_of_b, v * w.lanes.count), v) for v in range(shape.vectors)]
        for row in range(shape.rows):
            if row and row % self.rows_at_once == 0:
                before = slice((row - 1) * shape.vectors, row * shape.vectors)
                found[before] = w.in_order(*found[before])
            if self.config.a_rows_adjacent:
                place = w.element_pointer(w.element_pointer(a[0], a_steps[k]), row)
            else:
                place = w.element_pointer(self._row(a, row), k)
            factor = w.load_broadcast(place)
            for v in range(shape.vectors):
                i = row * shape.vectors + v
                found[i] = w.fma(factor, vectors[v], found[i])
        if self.config.a_rows_adjacent:
            # not into the first-level cache, which B fills
            w.prefetch_l2(w.element_pointer(a[1], next_steps[k]))
        return found

    def _row(self, a: list[ir.Value], row: int) -> ir.Value:
        return self.w.element_pointer(a[row // GROUP], self.steps[0][row % GROUP])

    def _prefetch_rows(self, a: list[ir.Value], index: ir.Value, ahead: ir.Value) -> None:
        """Prefetch one line of some rows; the iterations in which k passes a line select every row once."""
        w = self.w
        distance = min(LINE_BYTES // BYTES["float32"] // self.unrolled, _power(self.shape.rows))
        number = w.b.and_(index, integer(distance - 1))
        further = w.b.add(ahead, w.b.mul(number, self.pitches[0]))
        for row in range(0, self.shape.rows, distance):
            w.prefetch_l1(w.element_pointer(self._row(a, row), further))

    def _next(self, here: list[ir.Value], count: int) -> list[ir.Value]:
        """Pointers after ``count`` k."""
        w, (a_pitch, b_pitch, next_pitch) = self.w, self.pitches
        pitches = [b_pitch, *([a_pitch, next_pitch] if self.config.a_rows_adjacent else [])]
        further = [w.b.mul(pitch, integer(count)) for pitch in pitches]
        steps = further if self.config.a_rows_adjacent else [*further, *[integer(count)] * (len(here) - 1)]
        return [w.element_pointer(pointer, step) for pointer, step in zip(here, steps, strict=True)]


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
