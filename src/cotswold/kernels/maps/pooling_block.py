"""Block of lanes of L2 pooling: its maps, rules of addition, and the ring of quotients.

Knows: fields of the job, addresses inside and outside of the map. Does not know: the order of a window's sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, integer
from cotswold.kernels.compile.jobs import JobFields, Strip, number_field, up_to_power
from cotswold.kernels.maps.tasks import JobMap

JOB = JobFields(
    *("lanes", "blocks", "block", "parts", "part_rows", "column_parts", "part_columns"),
    *("in_height", "in_width", "out_height", "out_width", "low", "scalar"),
    maps=("input", "second", "factor", "output"),
)


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

Values = list[ir.Value]
"""Vectors of a strip."""


@dataclass(frozen=True)
class PoolConfig:
    """Configuration of a kernel: size of the window, rows of outputs computed together, vectors of a strip.

    With ``stream``, outputs bypass the caches and must be aligned to whole vectors.
    """

    size: int
    rows: int
    vectors: int
    stream: bool = False


def ring_rows(size: int) -> int:
    """Rows of quotients in the ring."""
    return up_to_power(max(1, size - 1))


@dataclass(frozen=True)
class Sum:
    """Rules of addition: of the first term, of a further term, of two sums."""

    first: Callable[[Values], Values]
    combine: Callable[[Values, Values], Values]
    merge: Callable[[Values, Values], Values]


class PoolBlock:
    """The block of lanes of a task."""

    def __init__(
        self,
        w: FunctionBuilder,
        kind: PoolKind,
        config: PoolConfig,
        job: ir.Value,
        scratch: ir.Value,
        group: ir.Value,
        lane: ir.Value,
        beside: ir.Value,
    ) -> None:
        self.w, self.kind, self.config = w, kind, config
        b = w.b

        def field(name: str) -> ir.Value:
            return w.field(job, JOB[name])

        self.low = field("low")
        self.in_height, self.in_width = field("in_height"), field("in_width")
        columns = field("part_columns")
        self.left = b.mul(beside, columns)
        self.right = w.min_int(b.add(self.left, columns), field("out_width"))
        self.source_left = b.sub(self.left, self.low)
        self.scalar = number_field(w, job, JOB["scalar"])
        self.lanes = w.min_int(field("block"), b.sub(field("lanes"), lane))
        self.input = JobMap(w, job, JOB["input"], lane, group)
        self.output = JobMap(w, job, JOB["output"], lane, group)
        self.strip_size = config.vectors * w.lanes.count
        self.zeros = scratch
        self.discard = w.element_pointer(scratch, self.strip_size)
        plain = Sum(lambda new: new, self._joined, self._joined)
        self.across = plain
        if kind.quotient:
            self.down = plain
            self.second = JobMap(w, job, JOB["second"], lane, group)
            self.factor = JobMap(w, job, JOB["factor"], lane, group)
            self.ring = w.element_pointer(self.discard, self.strip_size)
            self.ring_pitch = field("block")
            self.ring_row = b.mul(self.ring_pitch, b.add(columns, integer(config.size)))
        else:
            self.down = Sum(self._squares, self._squares_added, self._joined)
        for v in range(config.vectors):
            w.store(w.element_pointer(self.zeros, v * w.lanes.count), w.lanes.zero)

    def _joined(self, new: Values, total: Values) -> Values:
        return [self.w.b.fadd(one, other) for one, other in zip(new, total, strict=True)]

    def _squares(self, new: Values) -> Values:
        return [self.w.b.fmul(one, one) for one in new]

    def _squares_added(self, new: Values, total: Values) -> Values:
        return [self.w.fma(one, one, other) for one, other in zip(new, total, strict=True)]

    def quotients(
        self, strip: Strip, below: ir.Value, above: ir.Value, lane: ir.Value, there: ir.Value | None
    ) -> Values:
        """``(grad + weight) / pooled``, or zeros."""
        w, b = self.w, self.w.b
        divisors = strip.load(self.address_or(there, w.element_pointer(below, lane), self.zeros))
        values = [self.scalar] * strip.vectors
        if self.kind.grad:
            grads = strip.load(self.address_or(there, w.element_pointer(above, lane), self.zeros))
            values = [b.fadd(one, self.scalar) for one in grads]
        found = [b.fdiv(one, other) for one, other in zip(values, divisors, strict=True)]
        return found if there is None else [b.select(there, one, w.lanes.zero) for one in found]

    def ring_place(self, y: ir.Value, along: ir.Value) -> ir.Value:
        """Address of a row's quotients in the ring, ``along`` columns from the left."""
        b = self.w.b
        row = b.mul(b.and_(y, integer(ring_rows(self.config.size) - 1)), self.ring_row)
        return self.w.element_pointer(self.ring, b.add(row, b.mul(along, self.ring_pitch)))

    def address_or(self, there: ir.Value | None, place: ir.Value, other: ir.Value) -> ir.Value:
        """Return the address in a map, or ``other`` if it would be outside the map."""
        return place if there is None else self.w.b.select(there, place, other)

    def is_within(self, value: ir.Value, extent: ir.Value) -> ir.Value:
        """True if a row or column is inside the map."""
        return self.w.b.icmp_unsigned("<", value, extent)
