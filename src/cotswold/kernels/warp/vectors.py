"""Vector operations of image warps: 32-bit integers, floor, gathers of neighbouring pixels.

Knows: LLVM's vector instructions. Does not know: fields, positions.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import I1, I32, I64, POINTER, FunctionBuilder, declare
from cotswold.kernels.warp.images import HASH_MULTIPLIERS


class I32Vectors:
    """Vectors of 32-bit integers."""

    def __init__(self, w: FunctionBuilder) -> None:
        self.w, self.type = w, ir.VectorType(I32, w.lanes.count)

    def constant(self, value: int) -> ir.Constant:
        """Return a vector of one value, modulo 2^32."""
        return ir.Constant(self.type, [(value + (1 << 31)) % (1 << 32) - (1 << 31)] * self.w.lanes.count)

    def splat(self, value: ir.Value) -> ir.Value:
        """Broadcast the lower half of a 64-bit integer."""
        return self.w.splat(self.w.b.trunc(value, I32))

    def numbered(self, first: ir.Value) -> ir.Value:
        """Return consecutive integers from ``first``."""
        return self.w.b.add(self.splat(first), ir.Constant(self.type, list(range(self.w.lanes.count))))

    def as_numbers(self, value: ir.Value) -> ir.Value:
        """Convert a 64-bit integer to a float in every lane."""
        return self.w.splat(self.w.b.sitofp(value, self.w.lanes.scalar))

    def mixed(self, state: ir.Value) -> ir.Value:
        """Apply the hash of `HASH_MULTIPLIERS`."""
        b, first, second = self.w.b, *map(self.constant, HASH_MULTIPLIERS)
        state = b.mul(b.xor(state, b.lshr(state, self.constant(16))), first)
        state = b.mul(b.xor(state, b.lshr(state, self.constant(13))), second)
        return b.xor(state, b.lshr(state, self.constant(16)))


def floor(w: FunctionBuilder, value: ir.Value) -> ir.Value:
    """Round every lane down."""
    name = f"llvm.floor.v{w.lanes.count}f32"
    return w.b.call(declare(w.function.module, name, w.lanes.type, [w.lanes.type]), [value])


def gather_pairs(w: FunctionBuilder, base: ir.Value, indices: ir.Value) -> list[ir.Value]:
    """Gather the elements at these indices, and those after them: each pair is one load."""
    count = w.lanes.count
    pairs, pointers, mask = (ir.VectorType(one, count) for one in (I64, POINTER, I1))
    places = w.b.gep(base, [indices], source_etype=w.lanes.scalar)
    places.type = pointers  # llvmlite takes the type of the base
    gather = declare(
        w.function.module,
        f"llvm.masked.gather.v{count}i64.v{count}p0",
        pairs,
        [pointers, I32, mask, pairs],
    )
    every, none = ir.Constant(mask, [1] * count), ir.Constant(pairs, [0] * count)
    both = w.b.call(gather, [places, ir.Constant(I32, 4), every, none])
    both = w.b.bitcast(both, ir.VectorType(w.lanes.scalar, 2 * count))
    return [w.shuffle(both, both, range(one, 2 * count, 2)) for one in (0, 1)]
