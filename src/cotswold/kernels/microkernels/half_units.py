"""Half-precision units: packing, multiplication, and summation in float32.

Knows: the processor's bfloat16 dot-product instruction, widening and rounding, the layouts of units. Does not
know: tiles, tasks.

A unit takes 32 bits. If the processor has a dot-product instruction for bfloat16, a unit is a pair, the
elements k and k + 1: the instruction adds two adjacent products to each float32 sum. An odd k at an entry's
end is paired with zeros in both operands. These instructions treat subnormal numbers as 0. Otherwise a unit
is one element in float32. *Packing* turns rows of elements into rows of units.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import (
    I32,
    I64,
    POINTER,
    VOID,
    FunctionBuilder,
    Lanes,
    declare,
    integer,
    loop,
)
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.job import ENTRY
from cotswold.kernels.microkernels.kinds import AMX_TILE, Tile
from cotswold.kernels.microkernels.transpose import transposed

UNIT_NUMBERS = 2
"""16-bit elements in the size of a unit or a sum."""
UNIT_BYTES = 2 * UNIT_NUMBERS
ROWS_PER_ITERATION = 4
"""Rows of units packed in one iteration."""
WIDENED_PITCH = 400
"""Units between rows of A whose k are adjacent: a k-block of images, a vector, an odd number of lines."""
_HALF = ir.IntType(16)


class _Bfloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's ``bfloat``, which llvmlite lacks."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


def available(processor: Processor) -> bool:
    """True if the processor has the dot-product instruction for bfloat16."""
    return processor.isa == "avx512" and processor.has("avx512bf16", "avx512bw", "avx512vl")


@dataclass(frozen=True)
class Units:
    """Units of a dtype on a processor: ``lanes`` per vector; pairs, also for ``amx``, or single elements."""

    dtype: str
    lanes: int
    paired: bool
    amx: bool = False

    @classmethod
    def for_dtype(cls, dtype: str, processor: Processor, tile: Tile | None = None) -> Units:
        """Return the units of a dtype: pairs if the processor multiplies them; by AMX with its own tile."""
        paired = dtype == "bfloat16" and available(processor)
        amx = paired and tile == AMX_TILE and processor.has_amx
        return cls(dtype, processor.lanes("float32"), paired, amx)

    @property
    def k(self) -> int:
        """Number of k in a unit."""
        return 2 if self.paired else 1

    @property
    def numbers(self) -> Lanes:
        """Vector of elements, one per unit."""
        return Lanes(self.dtype, self.lanes)

    @property
    def sums(self) -> Lanes:
        """Vector of sums."""
        return Lanes("float32", self.lanes)

    @property
    def _integers(self) -> ir.VectorType:
        return ir.VectorType(I32, self.lanes)

    @property
    def _type(self) -> ir.VectorType:
        return self._integers if self.paired else self.sums.type

    def read(self, w: FunctionBuilder, pointer: ir.Value) -> ir.Value:
        """Load a vector of packed units."""
        return w.b.load(pointer, typ=self._type, align=4)

    def load(self, w: FunctionBuilder, pointer: ir.Value, count: ir.Value | None = None) -> ir.Value:
        """Load a vector of elements in place; with ``count``, the first ones only, and 0 for the others."""
        return w.load(pointer) if count is None else _read_first(w, pointer, count, self.lanes)

    def broadcast(self, w: FunctionBuilder, pointer: ir.Value) -> ir.Value:
        """Broadcast one packed unit to every lane."""
        return _spread(w, w.b.load(pointer, typ=self._type.element, align=4), self.lanes)

    def broadcast_first(self, w: FunctionBuilder, pointer: ir.Value) -> ir.Value:
        """Broadcast one element in memory as a unit, paired with 0; read nothing else."""
        number = w.b.load(pointer, typ=_HALF, align=2)
        if self.paired:
            return _spread(w, w.b.zext(number, I32), self.lanes)
        if self.dtype == "float16":
            return self.unit(w, _spread(w, number, self.lanes))
        # with the element in both halves of a lane, one shift gives 32 bits
        return self._shifted(w, w.b.bitcast(_spread(w, number, 2 * self.lanes), self._integers))

    def broadcast_of_two(self, w: FunctionBuilder, pointer: ir.Value, number: int) -> ir.Value:
        """Broadcast the first or the second of two elements in memory; for pairs, both."""
        if self.dtype == "float16":
            return self.broadcast_first(w, w.element_pointer(pointer, number))
        both = _spread(w, w.b.load(pointer, typ=I32, align=2), self.lanes)
        if self.paired:
            return both
        if number == 0:
            return self._shifted(w, both)
        return w.b.bitcast(w.b.and_(both, ir.Constant(both.type, [-1 << 16] * self.lanes)), self._type)

    def unit(self, w: FunctionBuilder, numbers: ir.Value) -> ir.Value:
        """Return a vector of units of adjacent elements."""
        if self.paired:
            return w.b.bitcast(numbers, self._type)
        if self.dtype == "float16":
            return w.b.fpext(w.b.bitcast(numbers, ir.VectorType(ir.HalfType(), self.lanes)), self._type)
        return self._shifted(w, w.b.zext(numbers, self._integers))

    def _shifted(self, w: FunctionBuilder, bits: ir.Value) -> ir.Value:
        return w.b.bitcast(w.b.shl(bits, ir.Constant(bits.type, [16] * self.lanes)), self._type)

    def add_products(self, w: FunctionBuilder, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """``sums + a b`` for every element of every unit."""
        kind = self.sums.type
        if not self.paired:
            fused = declare(w.function.module, f"llvm.fma.v{self.lanes}f32", kind, [kind] * 3)
            return w.b.call(fused, [a, b, sums])
        operand = ir.VectorType(_Bfloat(), self.k * self.lanes)
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        function = declare(w.function.module, name, kind, [kind, operand, operand])
        return w.b.call(function, [sums, w.b.bitcast(a, operand), w.b.bitcast(b, operand)])

    def rounded(self, w: FunctionBuilder, sums: ir.Value) -> ir.Value:
        """Round sums to elements, to nearest, ties to even."""
        kind = ir.VectorType(_HALF, self.lanes)
        if self.dtype == "float16":
            return w.b.bitcast(w.b.fptrunc(sums, ir.VectorType(ir.HalfType(), self.lanes)), kind)
        if self.paired:
            return w.b.bitcast(w.b.fptrunc(sums, ir.VectorType(_Bfloat(), self.lanes)), kind)
        half, up, down, most = (ir.Constant(self._integers, [n] * self.lanes) for n in (16, 15, 31, 0x7FFF))
        bits = w.b.bitcast(sums, self._integers)
        odd = w.b.lshr(w.b.shl(bits, up), down)
        # NaN sums are quiet: their upper half is NaN, and stays unchanged
        numbers = w.b.sext(w.b.fcmp_ordered("ord", sums, sums), self._integers)
        nearest = w.b.add(bits, w.b.and_(w.b.add(odd, most), numbers))
        return w.b.trunc(w.b.lshr(nearest, half), kind)

    def write(self, w: FunctionBuilder, pointer: ir.Value, sums: ir.Value, count: ir.Value | None) -> None:
        """Store rounded sums; with ``count``, only the first lanes, at least one."""
        values = self.rounded(w, sums)
        if count is None:
            w.b.store(values, pointer, align=2)
            return
        with w.b.if_else(_is_full(w, count, self.lanes), likely=True) as (whole, part):
            with whole:
                w.b.store(values, pointer, align=2)
            with part:
                _write_first(w, pointer, values, count)


def unit_at(w: FunctionBuilder, pointer: ir.Value, units: ir.Value | int) -> ir.Value:
    """Return the address ``units`` units, or float32 sums, after ``pointer``."""
    index = integer(units) if isinstance(units, int) else units
    return w.b.gep(pointer, [index], source_etype=I32)


def _spread(w: FunctionBuilder, value: ir.Value, lanes: int) -> ir.Value:
    one = w.b.insert_element(
        ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, ir.Constant(I32, 0)
    )
    return w.shuffle(one, ir.Constant(one.type, ir.Undefined), [0] * lanes)


def _is_full(w: FunctionBuilder, count: ir.Value, lanes: int) -> ir.Value:
    return w.b.icmp_signed(">=", count, integer(lanes))


def _pair_mask(w: FunctionBuilder, count: ir.Value, lanes: int) -> ir.Value:
    """Mask of the first ``count`` elements in pairs, without an odd last one.

    Not all processors have masks for 16 bits.
    """
    numbers = ir.Constant(ir.VectorType(I64, lanes // 2), list(range(1, lanes, 2)))
    return w.b.icmp_signed("<", numbers, _spread(w, count, lanes // 2))


def _read_first(w: FunctionBuilder, pointer: ir.Value, count: ir.Value, lanes: int) -> ir.Value:
    """Load the first ``count`` elements of a vector, at least one; the others are 0."""
    kind, doubles = ir.VectorType(_HALF, lanes), ir.VectorType(I32, lanes // 2)
    with w.b.if_else(_is_full(w, count, lanes), likely=True) as (whole, part):
        with whole:
            all_of_them, first = w.b.load(pointer, typ=kind, align=2), w.b.block
        with part:
            mask, name = _pair_mask(w, count, lanes), f"llvm.masked.load.v{lanes // 2}i32.p0"
            function = declare(w.function.module, name, doubles, [POINTER, mask.type, doubles])
            read = w.b.call(function, [pointer, mask, ir.Constant(doubles, [0] * (lanes // 2))])
            last = w.b.sub(count, integer(1))
            number = w.b.load(w.element_pointer(pointer, last), typ=_HALF, align=2)
            numbers = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
            is_last = w.b.icmp_signed("==", numbers, _spread(w, last, lanes))
            some = w.b.select(is_last, _spread(w, number, lanes), w.b.bitcast(read, kind))
            second = w.b.block
    found = w.b.phi(kind)
    found.add_incoming(all_of_them, first)
    found.add_incoming(some, second)
    return found


def _write_first(w: FunctionBuilder, pointer: ir.Value, values: ir.Value, count: ir.Value) -> None:
    """Store the first elements of a vector, at least one."""
    lanes = values.type.count
    mask, name = _pair_mask(w, count, lanes), f"llvm.masked.store.v{lanes // 2}i32.p0"
    doubles = w.b.bitcast(values, ir.VectorType(I32, lanes // 2))
    function = declare(w.function.module, name, VOID, [doubles.type, POINTER, mask.type])
    w.b.call(function, [doubles, pointer, mask])
    last = w.b.sub(count, integer(1))
    w.b.store(w.b.extract_element(values, last), w.element_pointer(pointer, last), align=2)


def write_packing(module: ir.Module, units: Units, vectors: int) -> ir.Function:
    """``pack(entries, count, field, source, pitch, last, out, out_pitch)``: pack rows of k to rows of units.

    ``field`` selects the offset of an entry in the source, whose rows are ``pitch`` elements apart. The last
    vector of a row has only ``last`` lanes; the others are 0. Returns the number of rows of units.
    """
    kind = ir.FunctionType(I64, [POINTER, I64, I64, POINTER, I64, I64, POINTER, I64])
    function = ir.Function(module, kind, f"pack_{vectors}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, field, source, pitch, last, out, out_pitch = function.args
    w, lanes = FunctionBuilder(function, units.numbers), units.lanes
    zero = ir.Constant(units.numbers.type, [0] * lanes)
    order = [n // 2 + (lanes if n % 2 else 0) for n in range(2 * lanes)]

    def row(pointer: ir.Value) -> list[ir.Value]:
        places = [w.element_pointer(pointer, v * lanes) for v in range(vectors)]
        return [*map(w.load, places[:-1]), units.load(w, places[-1], last)]

    def put(rows: list[list[ir.Value]], to: ir.Value) -> None:
        for v, numbers in enumerate(zip(*rows, strict=True)):
            value = units.unit(w, w.shuffle(numbers[0], numbers[1], order) if units.paired else numbers[0])
            w.b.store(value, unit_at(w, to, v * lanes), align=4)

    with loop(w, count, integer(0), out) as entry:
        record = ENTRY.record(w, entries, entry.index)
        first = w.element_pointer(source, w.field(record, field))
        k = w.field(record, ENTRY["k"])
        whole, odd = w.b.sdiv(k, integer(units.k)), w.b.srem(k, integer(units.k))
        here, to, left = first, entry.values[1], whole
        for at_once in (ROWS_PER_ITERATION, 1):
            with loop(w, w.b.sdiv(left, integer(at_once)), here, to) as turn:
                here, to = turn.values
                for _ in range(at_once):
                    rows = [row(w.element_pointer(here, w.b.mul(pitch, integer(i)))) for i in range(units.k)]
                    put(rows, to)
                    here, to = (
                        w.element_pointer(here, w.b.mul(pitch, integer(units.k))),
                        unit_at(w, to, out_pitch),
                    )
                turn.next = [here, to]
            here, to = turn.values
            left = w.b.srem(left, integer(at_once))
        if units.paired:
            with w.b.if_then(w.b.icmp_signed("!=", odd, integer(0))):
                put([row(here), [zero] * vectors], to)
        entry.next = [w.b.add(entry.values[0], w.b.add(whole, odd)), unit_at(w, to, w.b.mul(odd, out_pitch))]
    w.b.ret(entry.values[0])
    return function


def write_widening(module: ir.Module, units: Units) -> ir.Function:
    """``widen(entries, count, source, pitch, rows, out)``: write rows of adjacent k as rows of float32.

    Returns the number of k of all entries, which follow each other in a row. Rows are `WIDENED_PITCH` apart.
    """
    kind = ir.FunctionType(I64, [POINTER, I64, POINTER, I64, I64, POINTER])
    function = ir.Function(module, kind, "widen")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, source, pitch, rows, out = function.args
    w, lanes = FunctionBuilder(function, units.numbers), units.lanes
    with loop(w, count, integer(0)) as entry:
        record = ENTRY.record(w, entries, entry.index)
        first, k = w.element_pointer(source, w.field(record, ENTRY["a"])), w.field(record, ENTRY["k"])
        ahead, whole = w.field(record, ENTRY["ahead"]), w.b.sdiv(k, integer(lanes))
        odd = w.b.srem(k, integer(lanes))
        with loop(w, rows, first, unit_at(w, out, entry.values[0])) as row:
            with loop(w, whole, *row.values) as turn:
                here, to = turn.values
                w.prefetch_l2(w.element_pointer(here, ahead))
                w.b.store(units.unit(w, w.load(here)), to, align=4)
                turn.next = [w.element_pointer(here, lanes), unit_at(w, to, lanes)]
            here, to = turn.values
            with w.b.if_then(w.b.icmp_signed("!=", odd, integer(0))):
                w.b.store(units.unit(w, _read_first(w, here, odd, lanes)), to, align=4)
            row.next = [
                w.element_pointer(row.values[0], pitch),
                unit_at(w, row.values[1], WIDENED_PITCH),
            ]
        entry.next = [w.b.add(entry.values[0], k)]
    w.b.ret(entry.values[0])
    return function


def write_packing_transposed(module: ir.Module, units: Units) -> ir.Function:
    """``pack(entries, count, source, places, lanes, out, out_pitch)``: pack columns of k to rows of units.

    Returns the number of rows.

    Each lane has its own offset in the source, from which its k are contiguous; an entry's first k is at its
    offset in A. ``out`` needs room for one vector of rows minus one beyond the last, and a stride of whole
    vectors.
    """
    kind = ir.FunctionType(I64, [POINTER, I64, POINTER, POINTER, I64, POINTER, I64])
    function = ir.Function(module, kind, "pack_transposed")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, source, places, lanes, out, out_pitch = function.args
    w, square = FunctionBuilder(function, units.numbers), units.lanes
    last = w.b.sub(lanes, integer(1))
    with loop(w, count, integer(0), out) as entry:
        record = ENTRY.record(w, entries, entry.index)
        first, k = w.element_pointer(source, w.field(record, ENTRY["a"])), w.field(record, ENTRY["k"])
        rows = w.b.sdiv(w.b.add(k, integer(units.k - 1)), integer(units.k))
        with loop(w, lanes, step=square) as across, loop(w, rows, step=square) as down:
            at_k = w.b.mul(down.index, integer(units.k))
            left = w.b.sub(k, at_k)
            columns = []
            for i in range(square):
                lane = w.min_int(w.b.add(across.index, integer(i)), last)
                place = w.element_pointer(w.element_pointer(first, w.field(places, lane)), at_k)
                columns.append(units.unit(w, _read_first(w, place, left, units.k * square)))
            for i, value in enumerate(transposed(w, columns)):
                row = w.b.mul(w.b.add(down.index, integer(i)), out_pitch)
                w.b.store(value, unit_at(w, entry.values[1], w.b.add(row, across.index)), align=4)
        found = w.b.add(entry.values[0], rows)
        entry.next = [found, unit_at(w, entry.values[1], w.b.mul(rows, out_pitch))]
    w.b.ret(entry.values[0])
    return function
