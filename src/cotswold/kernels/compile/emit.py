"""Helpers to generate LLVM code: vectors, masks, loops, addresses.

Knows: llvmlite's builder. Does not know: what is computed.

LLVM code is in static single assignment form: a value that changes between iterations of a loop is a *phi*.
It takes one value on entry to the loop and another from the previous iteration. `Loop` hides that: such
values are *carried*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

I64 = ir.IntType(64)
I32 = ir.IntType(32)
I1 = ir.IntType(1)
POINTER = ir.PointerType()
VOID = ir.VoidType()
SCALARS = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "bfloat16": ir.IntType(16),
    "float16": ir.IntType(16),
}
"""LLVM types; half precision is moved as 16-bit integers (`half_units` multiplies them)."""
BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


def integer(value: int) -> ir.Constant:
    """Return a 64-bit constant."""
    return ir.Constant(I64, value)


@dataclass(frozen=True)
class Lanes:
    """A vector type: ``count`` elements of one scalar type."""

    dtype: str
    count: int

    @property
    def scalar(self) -> ir.Type:
        """Type of one element."""
        return SCALARS[self.dtype]

    @property
    def scalar_bytes(self) -> int:
        """Bytes of one element."""
        return BYTES[self.dtype]

    @property
    def type(self) -> ir.VectorType:
        """Type of the vector."""
        return ir.VectorType(self.scalar, self.count)

    @property
    def zero(self) -> ir.Constant:
        """Vector of zeros."""
        return ir.Constant(self.type, [0.0] * self.count)

    def constant(self, value: float) -> ir.Constant:
        """Return a vector with one value in every lane."""
        return ir.Constant(self.type, [value] * self.count)


class FunctionBuilder:
    """Generates the instructions of one function, with the types of this package."""

    def __init__(self, function: ir.Function, lanes: Lanes) -> None:
        self.function, self.lanes = function, lanes
        self.b = ir.IRBuilder(function.append_basic_block("entry"))

    def with_lanes(self, lanes: Lanes) -> FunctionBuilder:
        """Return a builder of the same function with another type of vectors."""
        found = FunctionBuilder.__new__(FunctionBuilder)
        found.function, found.lanes, found.b = self.function, lanes, self.b
        return found

    def element_pointer(self, pointer: ir.Value, elements: ir.Value | int) -> ir.Value:
        """Return the address ``elements`` elements after ``pointer``."""
        index = integer(elements) if isinstance(elements, int) else elements
        return self.b.gep(pointer, [index], source_etype=self.lanes.scalar)

    def field(self, table: ir.Value, index: ir.Value | int) -> ir.Value:
        """Load a 64-bit integer of a table."""
        return self.b.load(self.slot(table, index), typ=I64)

    def slot(self, table: ir.Value, index: ir.Value | int) -> ir.Value:
        """Return the address of a 64-bit integer of a table."""
        chosen = integer(index) if isinstance(index, int) else index
        return self.b.gep(table, [chosen], source_etype=I64)

    def pointer_field(self, table: ir.Value, index: int) -> ir.Value:
        """Load a pointer from a table."""
        return self.b.load(self.slot(table, index), typ=POINTER)

    def load(self, pointer: ir.Value) -> ir.Value:
        """Load a whole vector; its address need only be aligned to an element."""
        return self.b.load(pointer, typ=self.lanes.type, align=self._scalar_bytes)

    def store(self, pointer: ir.Value, value: ir.Value) -> None:
        """Store a whole vector."""
        self.b.store(value, pointer, align=self._scalar_bytes)

    def masked_load(self, pointer: ir.Value, mask: ir.Value) -> ir.Value:
        """Masked load: read only the lanes in ``mask``; the others are 0."""
        kind = self.lanes.type
        return self._call("llvm.masked.load", kind, [pointer, mask, self.lanes.zero], f".{self._suffix}.p0")

    def masked_store(self, pointer: ir.Value, value: ir.Value, mask: ir.Value) -> None:
        """Masked store: write only the lanes in ``mask``."""
        self._call("llvm.masked.store", VOID, [value, pointer, mask], f".{self._suffix}.p0")

    def load_broadcast(self, pointer: ir.Value) -> ir.Value:
        """Load one element into every lane (broadcast)."""
        return self.splat(self.b.load(pointer, typ=self.lanes.scalar))

    def splat(self, value: ir.Value) -> ir.Value:
        """Copy one value into every lane (splat)."""
        kind = (
            self.lanes.type
            if value.type == self.lanes.scalar
            else ir.VectorType(value.type, self.lanes.count)
        )
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, self.lanes.count), [0] * self.lanes.count)
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)

    def lane_mask(self, count: ir.Value) -> ir.Value:
        """Return the mask of the first ``count`` lanes."""
        kind = ir.VectorType(I64, self.lanes.count)
        numbers = ir.Constant(kind, list(range(self.lanes.count)))
        return self.b.icmp_unsigned("<", numbers, self.splat(count))

    def prefetch_l1(self, pointer: ir.Value) -> None:
        """Prefetch the cache line of an address for a read; the address need not be valid."""
        self._prefetch(pointer, 0, 3)

    def prefetch_l2(self, pointer: ir.Value) -> None:
        """Prefetch into the second-level cache."""
        self._prefetch(pointer, 0, 2)

    def prefetch_for_write(self, pointer: ir.Value) -> None:
        """Prefetch the cache line of an address for a write."""
        self._prefetch(pointer, 1, 3)

    def _prefetch(self, pointer: ir.Value, write: int, near: int) -> None:
        words = [ir.Constant(I32, one) for one in (write, near, 1)]
        self._call("llvm.prefetch", VOID, [pointer, *words], ".p0")

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Fused multiply-add: ``a b + c``, rounded once."""
        return self._call("llvm.fma", self.lanes.type, [a, b, c], f".{self._suffix}")

    def in_order(self, *values: ir.Value) -> list[ir.Value]:
        """Return the same values; the compiler moves no use of the results before anything they depend on.

        It is an empty assembler statement, without an instruction, whose results the compiler does not know.
        """
        register = "w" if self.function.module.triple.startswith("aarch64") else "v"
        kinds = ["r" if isinstance(value.type, ir.PointerType) else register for value in values]
        outputs = ",".join(f"={kind}" for kind in kinds)
        constraints = f"{outputs},{','.join(map(str, range(len(values))))},~{{memory}}"
        types = [value.type for value in values]
        kind = ir.FunctionType(ir.LiteralStructType(types), types)
        found = self.b.call(ir.InlineAsm(kind, "", constraints, side_effect=True), values)
        return [self.b.extract_value(found, number) for number in range(len(values))]

    def sqrt(self, value: ir.Value) -> ir.Value:
        """Square root of every lane."""
        return self._call("llvm.sqrt", self.lanes.type, [value], f".{self._suffix}")

    def scalar_sqrt(self, value: ir.Value) -> ir.Value:
        """Square root of one float64."""
        return self._call("llvm.sqrt", value.type, [value], ".f64")

    def rint(self, value: ir.Value) -> ir.Value:
        """Nearest integer, ties to even."""
        return self._call("llvm.rint", self.lanes.type, [value], f".{self._suffix}")

    def fabs(self, value: ir.Value) -> ir.Value:
        """Absolute value."""
        return self._call("llvm.fabs", self.lanes.type, [value], f".{self._suffix}")

    def copysign(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """Value with the sign of another."""
        return self._call("llvm.copysign", self.lanes.type, [value, other], f".{self._suffix}")

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Maximum of two vectors, lane by lane; NaN if ``a`` is NaN."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), b, a)

    def minimum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Minimum of two vectors, lane by lane; NaN if ``a`` is NaN."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), b, a)

    def shuffle(self, first: ir.Value, second: ir.Value, lanes: Sequence[int]) -> ir.Value:
        """Shuffle: select lanes of two vectors; the lanes of the second are numbered after the first."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.b.shuffle_vector(first, second, mask)

    def min_int(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Minimum of two integers."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def _call(self, name: str, kind: ir.Type, arguments: list[ir.Value], suffix: str) -> ir.Value:
        declared = declare(self.function.module, name + suffix, kind, [a.type for a in arguments])
        return self.b.call(declared, arguments)

    @property
    def _scalar_bytes(self) -> int:
        return self.lanes.scalar_bytes

    @property
    def _suffix(self) -> str:
        return f"v{self.lanes.count}f{8 * self._scalar_bytes}"


def declare(module: ir.Module, name: str, kind: ir.Type, arguments: list[ir.Type]) -> ir.Function:
    """Return a function of this module; declare it if necessary."""
    found = module.globals.get(name)
    return found if found is not None else ir.Function(module, ir.FunctionType(kind, arguments), name)


class Loop:
    """A loop under construction: its counter, its carried values and their next values."""

    def __init__(self, index: ir.Value, values: list[ir.Value]) -> None:
        self.index, self.values = index, values
        self.next: list[ir.Value] = list(values)


@contextmanager
def loop(
    w: FunctionBuilder, stop: ir.Value, *carried: ir.Value, start: int = 0, step: int = 1
) -> Iterator[Loop]:
    """``for index in range(start, stop, step)``; set ``next`` in the body, read ``values`` after the loop."""
    b = w.b
    before = b.block
    head, body, after = (w.function.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    index = b.phi(I64)
    index.add_incoming(integer(start), before)
    values = []
    for value in carried:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        values.append(phi)
    b.cbranch(b.icmp_signed("<", index, stop), body, after)
    b.position_at_end(body)
    turn = Loop(index, values)
    yield turn
    index.add_incoming(b.add(index, integer(step)), b.block)
    for phi, value in zip(values, turn.next, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
