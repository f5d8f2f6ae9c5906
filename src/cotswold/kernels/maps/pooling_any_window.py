"""Kernels of L2 pooling for windows of any size: sums over squares, forward and backward, row by row.

Knows: the order of a window's sum, rings of rows and columns in scratch. Does not know: tensors, autograd.

Outputs are computed in squares of two rows and two columns. Two neighbouring windows share all but their
ends, so their middle is summed once and each end is added to it:

    sum of rows 0..k-1 = end(0) + middle(1..k-1);  sum of rows 1..k = middle(1..k-1) + end(k)

That is 3 additions an output instead of 4 along each axis, and never a subtraction. Squares start at even
rows and columns of the map, not of the task, so that the order of a sum depends only on its position in the
map. Columns are summed downwards first, into a ring of columns in the first-level cache, then across. Lanes
are channels and images. A task has a block of them, so that it reads contiguous memory. Rows and columns
outside the map are zeros; outputs outside it go to scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.maps.tasks import (
    JobHead,
    JobMap,
    Strip,
    loop_range,
    max_int,
    number_field,
    range_length,
    strips,
    tasks,
)

VECTORS = 2
"""Vectors processed at a time."""

SQUARE_OFFSETS = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Rows and columns of a square."""


class PoolJob(IntEnum):
    """Fields of a job, after those of every job."""

    LANES = JobHead.FIELDS
    BLOCKS = 6
    BLOCK = 7
    PARTS = 8
    PART_ROWS = 9
    IN_HEIGHT = 10
    IN_WIDTH = 11
    OUT_HEIGHT = 12
    OUT_WIDTH = 13
    LOW = 14
    SIZE = 15
    RING = 16
    SCALAR = 17
    INPUT = 18
    SECOND = 22
    FACTOR = 26
    OUTPUT = 30
    COLUMN_PARTS = 34
    PART_COLUMNS = 35
    FIELDS = 36


@dataclass(frozen=True)
class PoolKind:
    """Term of the sum, and function of the sum.

    ``pool``: ``sqrt(sum x² + epsilon)``. ``slope``: ``x * sum((grad + weight) / pooled)``; without ``grad``
    the sum is of ``weight / pooled``.
    """

    name: str
    quotient: bool
    grad: bool = False


POOL = PoolKind("pool", quotient=False)
SLOPE = PoolKind("slope", quotient=True, grad=True)
PENALTY = PoolKind("penalty", quotient=True)


def scratch_elements(kind: PoolKind, block: int, ring: int, width: int) -> int:
    """Elements of scratch per thread: zeros, discarded outputs, rings of columns and of quotient rows."""
    return block * (2 + 1 + 2 * ring + (ring * width if kind.quotient else 0))


def write_any_window(kind: PoolKind, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows of a block of lanes."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        (group, lane, beside), first, stop = part_of(w, job, number)
        _Block(w, kind, job, scratch, group, lane, beside).write(first, stop)
    return module


def part_of(
    w: FunctionBuilder, job: ir.Value, number: ir.Value
) -> tuple[tuple[ir.Value, ir.Value, ir.Value], ir.Value, ir.Value]:
    """Group of lanes, first lane, part of the columns, first row and end row of a task."""
    b = w.b
    parts, blocks = w.field(job, PoolJob.PARTS), w.field(job, PoolJob.BLOCKS)
    columns = w.field(job, PoolJob.COLUMN_PARTS)
    beside, rest = b.urem(number, columns), b.udiv(number, columns)
    part, rest = b.urem(rest, parts), b.udiv(rest, parts)
    lane = b.mul(b.urem(rest, blocks), w.field(job, PoolJob.BLOCK))
    rows = w.field(job, PoolJob.PART_ROWS)
    first = b.mul(part, rows)
    stop = w.min_int(b.add(first, rows), w.field(job, PoolJob.OUT_HEIGHT))
    return (b.udiv(rest, blocks), lane, beside), first, stop


class _Block:
    """The block of lanes of a task."""

    def __init__(
        self,
        w: FunctionBuilder,
        kind: PoolKind,
        job: ir.Value,
        scratch: ir.Value,
        group: ir.Value,
        lane: ir.Value,
        beside: ir.Value,
    ) -> None:
        self.w, self.kind = w, kind
        self.low, self.size = w.field(job, PoolJob.LOW), w.field(job, PoolJob.SIZE)
        self.in_height, self.in_width = w.field(job, PoolJob.IN_HEIGHT), w.field(job, PoolJob.IN_WIDTH)
        self.out_height, self.out_width = w.field(job, PoolJob.OUT_HEIGHT), w.field(job, PoolJob.OUT_WIDTH)
        columns = w.field(job, PoolJob.PART_COLUMNS)
        self.left = w.b.mul(beside, columns)
        self.right = w.min_int(w.b.add(self.left, columns), self.out_width)
        self.source_left = max_int(w, w.b.sub(self.left, self.low), integer(0))
        reach = w.b.sub(w.b.add(self.right, self.size), w.b.add(self.low, integer(1)))
        self.source_width = range_length(w, self.source_left, w.min_int(reach, self.in_width))
        self.scalar = number_field(w, job, PoolJob.SCALAR)
        self.block = w.field(job, PoolJob.BLOCK)
        self.lanes = w.min_int(self.block, w.b.sub(w.field(job, PoolJob.LANES), lane))
        self.input = JobMap(w, job, PoolJob.INPUT, lane, group)
        self.output = JobMap(w, job, PoolJob.OUTPUT, lane, group)
        ring = w.field(job, PoolJob.RING)
        self.mask = w.b.sub(ring, integer(1))
        self.pair = w.b.shl(self.block, integer(1))
        self.zeros = scratch
        self.discard = w.element_pointer(scratch, self.pair)
        self.columns = w.element_pointer(self.discard, self.block)
        if kind.quotient:
            self.second = JobMap(w, job, PoolJob.SECOND, lane, group)
            self.factor = JobMap(w, job, PoolJob.FACTOR, lane, group)
            self.rows = w.element_pointer(self.columns, w.b.mul(ring, self.pair))
            self.row_size = w.b.mul(self.source_width, self.block)
        with loop(w, self.pair, step=w.lanes.count) as turn:
            w.store(w.element_pointer(self.zeros, turn.index), w.lanes.zero)

    def write(self, first: ir.Value, stop: ir.Value) -> None:
        """Compute rows from ``first``, which is even, to ``stop``."""
        w, b = self.w, self.w.b
        pairs = b.sdiv(b.add(b.sub(stop, first), integer(1)), integer(2))
        with loop(w, pairs, max_int(w, b.sub(first, self.low), integer(0))) as turn:
            y = b.add(first, b.mul(turn.index, integer(2)))
            top = b.sub(y, self.low)
            if self.kind.quotient:
                below = w.min_int(b.add(b.add(top, self.size), integer(1)), self.in_height)
                with loop_range(w, turn.values[0], below) as row:
                    self._write_quotients(row)
                turn.next = [max_int(w, turn.values[0], below)]
            self._write_pair(y, top, stop)

    def _write_quotients(self, y: ir.Value) -> None:
        """Write ``(grad + weight) / pooled`` of a row to its slot in the ring."""
        w, b = self.w, self.w.b
        target = self._row(y)
        ahead = b.add(y, integer(2))
        with loop(w, self.source_width) as turn:
            x = b.add(self.source_left, turn.index)
            to, below = (
                w.element_pointer(target, b.mul(turn.index, self.block)),
                self.second.position_address(y, x),
            )
            below_ahead = self.second.position_address(ahead, x)
            if self.kind.grad:
                above, above_ahead = self.input.position_address(y, x), self.input.position_address(ahead, x)

            def body(strip: Strip, lane: ir.Value) -> None:
                strip.prefetch(w.element_pointer(below_ahead, lane))
                divisors = strip.load(w.element_pointer(below, lane))
                if self.kind.grad:
                    strip.prefetch(w.element_pointer(above_ahead, lane))
                    values = [b.fadd(one, self.scalar) for one in strip.load(w.element_pointer(above, lane))]
                else:
                    values = [self.scalar] * strip.vectors
                found = [b.fdiv(one, other) for one, other in zip(values, divisors, strict=True)]
                strip.store_scratch(w.element_pointer(to, lane), found)

            strips(w, VECTORS, self.lanes, body)

    def _row(self, y: ir.Value) -> ir.Value:
        """Address of a row of terms."""
        w = self.w
        if self.kind.quotient:
            return w.element_pointer(self.rows, w.b.mul(w.b.and_(y, self.mask), self.row_size))
        return w.element_pointer(self.input.base, w.b.mul(y, self.input.row))

    def _column(self, x: ir.Value) -> ir.Value:
        """Address of a column's two sums in the ring."""
        return self.w.element_pointer(self.columns, self.w.b.mul(self.w.b.and_(x, self.mask), self.pair))

    def _is_within(self, value: ir.Value, extent: ir.Value) -> ir.Value:
        return self.w.b.icmp_unsigned("<", value, extent)

    def _write_pair(self, y: ir.Value, top: ir.Value, stop: ir.Value) -> None:
        """Compute two rows of outputs, or one."""
        w, b = self.w, self.w.b
        two = b.icmp_signed("<", b.add(y, integer(1)), stop)
        column = self._column_writer(top)
        pairs = b.sdiv(b.add(b.sub(self.right, self.left), integer(1)), integer(2))
        with loop(w, pairs, self.source_left) as turn:
            x = b.add(self.left, b.mul(turn.index, integer(2)))
            left = b.sub(x, self.low)
            reach = w.min_int(b.add(b.add(left, self.size), integer(1)), self.in_width)
            ready = w.min_int(reach, b.add(self.source_left, self.source_width))
            with loop_range(w, turn.values[0], ready) as one:
                column(one)
            turn.next = [max_int(w, turn.values[0], ready)]
            self._write_square(y, x, left, two)

    def _column_writer(self, top: ir.Value) -> Callable[[ir.Value], None]:
        """Return a function that sums a column downwards, for the rows from ``top`` and from one below."""
        w, b = self.w, self.w.b
        pitch = self.block if self.kind.quotient else self.input.column
        bottom = b.add(top, self.size)

        def row_of(y: ir.Value) -> tuple[ir.Value, ir.Value]:
            there = self._is_within(y, self.in_height)
            return b.select(there, self._row(y), self.zeros), b.select(there, pitch, integer(0))

        ends = [row_of(top), row_of(bottom)]
        first = max_int(w, b.add(top, integer(1)), integer(0))
        count = range_length(w, first, w.min_int(bottom, self.in_height))
        ahead = [self._row(b.add(bottom, integer(i))) for i in (1, 2)]

        def write(x: ir.Value) -> None:
            along = b.sub(x, self.source_left) if self.kind.quotient else x
            places = [w.element_pointer(row, b.mul(along, step)) for row, step in ends]
            offset = b.mul(along, pitch)
            ahead_here = [w.element_pointer(row, offset) for row in ahead]
            target = self._column(x)

            def body(strip: Strip, lane: ir.Value) -> None:
                read = strip.load_scratch if self.kind.quotient else strip.load
                if not self.kind.quotient:
                    for one in ahead_here:
                        strip.prefetch(w.element_pointer(one, lane))
                with loop(w, count, *strip.zeros()) as down:
                    here = w.element_pointer(self._row(b.add(first, down.index)), b.add(offset, lane))
                    down.next = self._add_row(read(here), down.values)
                for i, place in enumerate(places):
                    values = self._add_row(read(w.element_pointer(place, lane)), down.values)
                    strip.store_scratch(
                        w.element_pointer(target, b.add(lane, b.mul(self.block, integer(i)))), values
                    )

            strips(w, VECTORS, self.lanes, body)

        return write

    def _add_row(self, values: list[ir.Value], total: list[ir.Value]) -> list[ir.Value]:
        """Add one row to a sum."""
        b = self.w.b
        if self.kind.quotient:
            return _sums(b, values, total)
        return [self.w.fma(one, one, other) for one, other in zip(values, total, strict=True)]

    def _write_square(self, y: ir.Value, x: ir.Value, left: ir.Value, two: ir.Value) -> None:
        """Sum across for two rows and two columns, and write the outputs."""
        w, b = self.w, self.w.b
        right = b.add(left, self.size)

        def place_of(column: ir.Value) -> ir.Value:
            return b.select(self._is_within(column, self.in_width), self._column(column), self.zeros)

        ends = [place_of(left), place_of(right)]
        first = max_int(w, b.add(left, integer(1)), integer(0))
        count = range_length(w, first, w.min_int(right, self.in_width))
        outputs = []
        for i, j in SQUARE_OFFSETS:
            below, beside = b.add(y, integer(i)), b.add(x, integer(j))
            there = self._is_within(beside, self.out_width)
            there = b.and_(there, two) if i else there
            factor = self.factor.position_address(below, beside) if self.kind.quotient else self.zeros
            output = b.select(there, self.output.position_address(below, beside), self.discard)
            outputs.append((output, b.select(there, factor, self.zeros)))
        factors_ahead = (
            [
                self.factor.position_address(b.add(y, integer(2 + i)), b.add(x, integer(j)))
                for i, j in SQUARE_OFFSETS
            ]
            if self.kind.quotient
            else []
        )

        def body(strip: Strip, lane: ir.Value) -> None:
            for one in factors_ahead:
                strip.prefetch(w.element_pointer(one, lane))
            for i in range(2):
                start = b.add(lane, b.mul(self.block, integer(i)))
                with loop(w, count, *strip.zeros()) as across:
                    here = self._column(b.add(first, across.index))
                    across.next = _sums(b, strip.load_scratch(w.element_pointer(here, start)), across.values)
                for j, place in enumerate(ends):
                    values = strip.load_scratch(w.element_pointer(place, start))
                    found = _sums(b, values, across.values)
                    output, factor = outputs[2 * i + j]
                    strip.store(
                        w.element_pointer(output, lane),
                        self._finished(strip, found, w.element_pointer(factor, lane)),
                    )

        strips(w, VECTORS, self.lanes, body)

    def _finished(self, strip: Strip, sums: list[ir.Value], factor: ir.Value) -> list[ir.Value]:
        b = self.w.b
        if self.kind.quotient:
            return [b.fmul(one, total) for one, total in zip(strip.load(factor), sums, strict=True)]
        return [self.w.sqrt(b.fadd(total, self.scalar)) for total in sums]


def _sums(b: ir.IRBuilder, values: list[ir.Value], totals: list[ir.Value]) -> list[ir.Value]:
    return [b.fadd(one, total) for one, total in zip(values, totals, strict=True)]
