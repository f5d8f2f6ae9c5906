"""Pairs of bfloat16: how they are made, multiplied and summed in float32.

Knows: the processor's instruction for pairs, and the layouts in which pairs lie. Does not know: tiles, tasks.

One instruction adds two neighbouring products to each of 16 float32 sums. So the two neighbours, of k and
k + 1, must share 32 bits: *packing* brings two rows of numbers into one row of such pairs. An odd k at an
entry's end is paired with zeros on both sides. These instructions take subnormal numbers as 0.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import INT, NOTHING, POINTER, SHORT, Lanes, Writer, declare, integer, loop
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.tile import ENTRY_FIELDS
from cotswold.kernels.microkernels.transpose import transposed

LANES = 16
"""Sums, and pairs, in a vector."""
NUMBERS = Lanes("bfloat16", LANES)
SUMS = Lanes("float32", LANES)
SUM_NUMBERS = 2
"""Numbers of bfloat16 in the place of a float32 or of a pair."""


class _Bfloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's ``bfloat``, which llvmlite has no word for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bfloat)

    def __hash__(self) -> int:
        return hash(_Bfloat)


_PAIRS = ir.VectorType(SHORT, LANES)
_OPERAND = ir.VectorType(_Bfloat(), 2 * LANES)
_ROUNDED = ir.VectorType(_Bfloat(), LANES)
_HALVES = ir.VectorType(ir.IntType(16), 2 * LANES)


def available(processor: Processor) -> bool:
    """Whether a processor multiplies pairs."""
    features = processor.features.split(",")
    return processor.isa == "avx512" and {"+avx512bf16", "+avx512bw", "+avx512vl"} <= set(features)


def pair_at(w: Writer, pointer: ir.Value, pairs: ir.Value | int) -> ir.Value:
    """The address so many pairs, or float32 sums, further."""
    index = integer(pairs) if isinstance(pairs, int) else pairs
    return w.b.gep(pointer, [index], source_etype=SHORT)


def read_pairs(w: Writer, pointer: ir.Value) -> ir.Value:
    """A vector of packed pairs."""
    return w.b.load(pointer, typ=_PAIRS, align=4)


def spread_pair(w: Writer, pointer: ir.Value) -> ir.Value:
    """Two neighbouring numbers in every lane; they may begin at any number."""
    return w.spread_value(w.b.load(pointer, typ=SHORT, align=2))


def spread_single(w: Writer, pointer: ir.Value) -> ir.Value:
    """One number in every lane, paired with 0; only it is read."""
    return w.spread_value(w.b.zext(w.b.load(pointer, typ=ir.IntType(16), align=2), SHORT))


def add_products(w: Writer, sums: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """``sums + a b`` for both numbers of every pair."""
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = declare(w.function.module, name, SUMS.type, [SUMS.type, _OPERAND, _OPERAND])
    return w.b.call(function, [sums, w.b.bitcast(a, _OPERAND), w.b.bitcast(b, _OPERAND)])


def read_sums(w: Writer, pointer: ir.Value) -> ir.Value:
    """A vector of float32."""
    return w.b.load(pointer, typ=SUMS.type, align=4)


def write_sums(w: Writer, pointer: ir.Value, value: ir.Value) -> None:
    """Store a vector of float32."""
    w.b.store(value, pointer, align=4)


def write_rounded(w: Writer, pointer: ir.Value, sums: ir.Value, mask: ir.Value | None) -> None:
    """Store sums as bfloat16, the nearest, or the even one of two; of a mask only its lanes."""
    bits = w.b.bitcast(w.b.fptrunc(sums, _ROUNDED), NUMBERS.type)
    if mask is None:
        w.b.store(bits, pointer, align=2)
    else:
        name = "llvm.masked.store.v16i16.p0"
        function = declare(w.function.module, name, NOTHING, [bits.type, POINTER, mask.type])
        w.b.call(function, [bits, pointer, mask])


def _read_masked(w: Writer, pointer: ir.Value, mask: ir.Value, kind: ir.VectorType) -> ir.Value:
    name = f"llvm.masked.load.v{kind.count}i16.p0"
    function = declare(w.function.module, name, kind, [POINTER, mask.type, kind])
    return w.b.call(function, [pointer, mask, ir.Constant(kind, [0] * kind.count)])


def _masked_lanes(w: Writer, count: ir.Value, lanes: int) -> ir.Value:
    numbers = ir.Constant(ir.VectorType(INT, lanes), list(range(lanes)))
    one = w.b.insert_element(ir.Constant(numbers.type, ir.Undefined), count, ir.Constant(SHORT, 0))
    zeros = ir.Constant(ir.VectorType(SHORT, lanes), [0] * lanes)
    return w.b.icmp_signed(
        "<", numbers, w.b.shuffle_vector(one, ir.Constant(numbers.type, ir.Undefined), zeros)
    )


def write_packing(module: ir.Module, vectors: int) -> ir.Function:
    """``pack(entries, count, field, source, pitch, last, out, out_pitch)``: rows of k to rows of pairs.

    ``field`` says which of an entry's places leads into the source, whose rows are a pitch of numbers apart;
    of the last vector of a row only so many lanes are read, the others are 0. Returns the rows of pairs.
    """
    kind = ir.FunctionType(INT, [POINTER, INT, INT, POINTER, INT, INT, POINTER, INT])
    function = ir.Function(module, kind, f"pack_{vectors}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, field, source, pitch, last, out, out_pitch = function.args
    w = Writer(function, NUMBERS)
    mask = w.first_lanes(last)
    zero = ir.Constant(NUMBERS.type, [0] * LANES)
    order = [n // 2 + (LANES if n % 2 else 0) for n in range(2 * LANES)]

    def row(pointer: ir.Value) -> list[ir.Value]:
        places = [w.at(pointer, v * LANES) for v in range(vectors)]
        whole = [w.read(place) for place in places[:-1]]
        return [*whole, _read_masked(w, places[-1], mask, NUMBERS.type)]

    def put(upper: list[ir.Value], lower: list[ir.Value], to: ir.Value) -> None:
        for v, (first, second) in enumerate(zip(upper, lower, strict=True)):
            w.b.store(w.pick(first, second, order), pair_at(w, to, v * LANES), align=4)

    with loop(w, count, integer(0), out) as entry:
        record = w.slot(entries, w.b.mul(entry.index, integer(ENTRY_FIELDS)))
        first = w.at(source, w.field(record, field))
        k = w.field(record, 2)
        with loop(w, w.b.ashr(k, integer(1)), first, entry.values[1]) as turn:
            here, to = turn.values
            below = w.at(here, pitch)
            put(row(here), row(below), to)
            turn.next = [w.at(below, pitch), pair_at(w, to, out_pitch)]
        here, to = turn.values
        odd = w.b.and_(k, integer(1))
        with w.b.if_then(w.b.icmp_signed("!=", odd, integer(0))):
            put(row(here), [zero] * vectors, to)
        pairs = w.b.add(w.b.ashr(k, integer(1)), odd)
        entry.next = [w.b.add(entry.values[0], pairs), pair_at(w, to, w.b.mul(odd, out_pitch))]
    w.b.ret(entry.values[0])
    return function


def write_packing_transposed(module: ir.Module) -> ir.Function:
    """``pack(entries, count, source, places, lanes, out, out_pitch)``: columns of k to rows of pairs.

    Each lane has its place in the source, from which its k follow each other; an entry's first k is where it
    begins in A. ``out`` needs room for 15 more rows than there are, and a pitch of whole vectors.
    """
    kind = ir.FunctionType(NOTHING, [POINTER, INT, POINTER, POINTER, INT, POINTER, INT])
    function = ir.Function(module, kind, "pack_transposed")
    function.linkage = "internal"
    function.attributes.add("noinline")
    entries, count, source, places, lanes, out, out_pitch = function.args
    w = Writer(function, NUMBERS)
    last = w.b.sub(lanes, integer(1))
    with loop(w, count, out) as entry:
        record = w.slot(entries, w.b.mul(entry.index, integer(ENTRY_FIELDS)))
        first, k = w.at(source, w.field(record, 0)), w.field(record, 2)
        pairs = w.b.ashr(w.b.add(k, integer(1)), integer(1))
        with loop(w, lanes, step=LANES) as across, loop(w, pairs, step=LANES) as down:
            at_k = w.b.shl(down.index, integer(1))
            mask = _masked_lanes(w, w.b.sub(k, at_k), 2 * LANES)
            columns = []
            for i in range(LANES):
                lane = w.least(w.b.add(across.index, integer(i)), last)
                place = w.at(w.at(first, w.field(places, lane)), at_k)
                columns.append(w.b.bitcast(_read_masked(w, place, mask, _HALVES), _PAIRS))
            for i, value in enumerate(transposed(w, columns)):
                row = w.b.mul(w.b.add(down.index, integer(i)), out_pitch)
                w.b.store(value, pair_at(w, entry.values[0], w.b.add(row, across.index)), align=4)
        entry.next = [pair_at(w, entry.values[0], w.b.mul(pairs, out_pitch))]
    w.b.ret_void()
    return function
