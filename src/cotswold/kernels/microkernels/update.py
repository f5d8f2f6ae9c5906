"""The step of a stack's filters, for some neurons of a block whose gradient is in scratch.

Knows: the rule of `ops.sgd_rule.filter_step`, four passes over one field's filters, gradient and momentum,
all in cache. Does not know: the source of the gradient.

Neurons are the lanes, so that every sum over a filter is one chain in the order of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, Lanes, integer, loop

WIDEST = 4
"""Vectors of neurons per pass: as many chains as a multiply-add takes cycles."""
TINY = 1e-30
"""Added to divisors that may be 0, as in `ops.sgd_rule`."""


@dataclass(frozen=True, eq=False)
class _Columns:
    """Some vectors of neurons of one array, row by row; the mask selects the lanes of the last vector."""

    w: FunctionBuilder
    first: ir.Value
    pitch: ir.Value
    vectors: int
    mask: ir.Value

    def _addresses(self, row: ir.Value | None) -> list[ir.Value]:
        w = self.w
        start = self.first if row is None else w.element_pointer(self.first, w.b.mul(row, self.pitch))
        return [w.element_pointer(start, v * w.lanes.count) for v in range(self.vectors)]

    def load(self, row: ir.Value | None = None) -> list[ir.Value]:
        *whole, last = self._addresses(row)
        return [*(self.w.load(place) for place in whole), self.w.masked_load(last, self.mask)]

    def store(self, values: list[ir.Value], row: ir.Value | None = None) -> None:
        *whole, last = self._addresses(row)
        for place, value in zip(whole, values[:-1], strict=True):
            self.w.store(place, value)
        self.w.masked_store(last, values[-1], self.mask)


def write_update(module: ir.Module, lanes: Lanes) -> list[ir.Function]:
    """``update(filters, momentum, pitch, gradient, its pitch, norms, rows, lanes in the last, constants)``.

    One function for each number of vectors up to WIDEST. The constants are three float64 numbers: the
    fraction of the last step that is kept, the rate over α times the fan-in, the longest step.
    """
    return [_write(module, lanes, vectors) for vectors in range(1, WIDEST + 1)]


def _write(module: ir.Module, lanes: Lanes, vectors: int) -> ir.Function:
    kind = ir.FunctionType(VOID, [POINTER, POINTER, I64, POINTER, I64, POINTER, I64, I64, POINTER])
    function = ir.Function(module, kind, f"update_{vectors}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    filters, momentum, pitch, gradient, gradient_pitch, norms, rows, last, constants = function.args
    w = FunctionBuilder(function, lanes)
    b, mask, zero, one = w.b, w.lane_mask(last), lanes.zero, lanes.constant(1.0)
    W = _Columns(w, filters, pitch, vectors, mask)
    M = _Columns(w, momentum, pitch, vectors, mask)
    G = _Columns(w, gradient, gradient_pitch, vectors, mask)
    N = _Columns(w, norms, integer(0), vectors, mask)
    kept, rate, longest = (_constant(w, constants, i) for i in range(3))

    def reciprocal(value: ir.Value) -> ir.Value:
        return b.select(b.fcmp_ordered(">", value, zero), b.fdiv(one, value), zero)

    def each(function: Callable[..., ir.Value], *columns: list[ir.Value]) -> list[ir.Value]:
        return [function(*values) for values in zip(*columns, strict=True)]

    nothing = [zero] * vectors
    norm = N.load()
    unit = each(reciprocal, norm)
    with loop(w, rows, *nothing) as along:
        along.next = each(w.fma, W.load(along.index), G.load(along.index), along.values)
    part = each(lambda sum_, u: b.fneg(b.fmul(sum_, b.fmul(u, u))), along.values, unit)
    scale = [b.fneg(b.fmul(u, rate)) for u in unit]
    with loop(w, rows, *nothing) as moved:
        row = moved.index
        tangent = each(w.fma, W.load(row), part, G.load(row))
        step = each(w.fma, tangent, scale, [b.fmul(m, kept) for m in M.load(row)])
        M.store(step, row)
        moved.next = each(w.fma, step, step, moved.values)
    length = [w.sqrt(value) for value in moved.values]
    shorter = each(
        lambda n, size: w.minimum(b.fdiv(b.fmul(longest, n), b.fadd(size, lanes.constant(TINY))), one),
        norm,
        length,
    )
    with loop(w, rows, *nothing) as added:
        row = added.index
        step = each(b.fmul, M.load(row), shorter)
        M.store(step, row)
        there = each(b.fadd, W.load(row), step)
        W.store(there, row)
        added.next = each(w.fma, there, there, added.values)
    again = [reciprocal(w.sqrt(value)) for value in added.values]
    with loop(w, rows, *nothing) as whole:
        row = whole.index
        there = each(b.fmul, W.load(row), again)
        W.store(there, row)
        whole.next = each(w.fma, there, there, whole.values)
    N.store([w.sqrt(value) for value in whole.values])
    b.ret_void()
    return function


def _constant(w: FunctionBuilder, constants: ir.Value, index: int) -> ir.Value:
    """Broadcast one of the constants to every lane."""
    double = ir.DoubleType()
    value = w.b.load(w.b.gep(constants, [integer(index)], source_etype=double), typ=double)
    return w.splat(value if w.lanes.dtype == "float64" else w.b.fptrunc(value, w.lanes.scalar))
