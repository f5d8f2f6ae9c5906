"""Kernels of updates: weights, what is kept beside them, and any number of pushes, each read once.

Knows: formulas in vectors, how a task goes through its numbers, the order of a row's sum. Does not know:
tensors, threads, what a push is.

Every number is a chain of its own: it goes through all pushes in their order while it is in a register, so
neither threads, nor vectors, nor how many pushes there are at once change a bit. Multiplications are fused
with additions where torch's optimisers fuse them: `add` has the bits of ``torch.optim.SGD``, `adagrad` those
of ``torch.optim.Adagrad`` but for its roots, which torch does not always round to nearest.
Rows are scaled to norm 1 by the task that has just written them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import IntEnum
from typing import Literal

from llvmlite import ir

from cotswold.kernels.compile.emit import SHORT, Lanes, Writer, integer, loop
from cotswold.kernels.maps.tasks import DOUBLE, JobHead, Strip, number_field, strips, tasks

VECTORS = 4
"""Vectors of weights that go through all pushes together."""
CHAINS = 32
"""Chains in which the squares of a row are summed, of every 32nd number; part of what the norm is, to the
bit."""
TOGETHER = 4
"""Pushes that numbers go through without leaving their registers."""
PART = 1 << 11
"""Numbers that go through all pushes before the next are begun; they stay in the first cache."""
AHEAD_BYTES = 2048
"""How far ahead of its use a push is asked for."""
PUSH_FIELDS = 2
"""Of a push in the table: its address, its factor as a float64."""

Kind = Literal["add", "momentum", "adagrad"]
"""`add`: ``w + f·p``. `momentum`: ``v = c·v − f·p``, then ``w + v``. `adagrad`: ``a + p·p``, then
``w − f·p/(√a + c)``. f is the factor of a push p, c the constant of the job."""


class UpdateJob(IntEnum):
    """The fields of a job, after those of every job."""

    WEIGHTS = JobHead.FIELDS
    KEPT = 6
    PUSHES = 7
    """The table of pushes."""
    COUNT = 8
    """How many pushes there are, one at least."""
    SIZE = 9
    ROW = 10
    TASK_ROWS = 11
    UNIT = 12
    """Whether rows are scaled to norm 1."""
    CONSTANT = 13
    FIELDS = 14


def write_update(kind: Kind, lanes: Lanes, triple: str) -> ir.Module:
    """A module with ``work(job)``: some rows a task, all pushes."""
    module = ir.Module(f"update_{kind}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        _Task(w, kind, job).write(number)
    return module


class _Task:
    """Some rows of a shard, and what every task knows."""

    def __init__(self, w: Writer, kind: Kind, job: ir.Value) -> None:
        self.w, self.kind = w, kind
        self.weights, self.kept = (w.pointer_field(job, one) for one in (UpdateJob.WEIGHTS, UpdateJob.KEPT))
        self.pushes = w.pointer_field(job, UpdateJob.PUSHES)
        self.count, self.size = w.field(job, UpdateJob.COUNT), w.field(job, UpdateJob.SIZE)
        self.row, self.rows = w.field(job, UpdateJob.ROW), w.field(job, UpdateJob.TASK_ROWS)
        self.unit = w.b.icmp_signed("!=", w.field(job, UpdateJob.UNIT), integer(0))
        self.constant = number_field(w, job, UpdateJob.CONSTANT)

    def write(self, number: ir.Value) -> None:
        """All rows of the task of this number."""
        w, b = self.w, self.w.b
        task = b.mul(self.row, self.rows)
        begin = b.mul(number, task)
        stop = w.least(self.size, b.add(begin, task))
        first = b.sdiv(begin, self.row)
        last = b.sdiv(b.add(stop, b.sub(self.row, integer(1))), self.row)
        with loop(w, b.sub(last, first)) as turn:
            start = b.mul(b.add(first, turn.index), self.row)
            length = w.least(self.row, b.sub(self.size, start))
            with loop(w, length, step=PART) as part:
                here = b.add(start, part.index)
                self._move_part(here, w.least(integer(PART), b.sub(length, part.index)))
            with b.if_then(self.unit):
                self._scale_to_one(w.at(self.weights, start), length)

    def _move_part(self, start: ir.Value, length: ir.Value) -> None:
        """Some numbers through all pushes: so many at a time, then one by one."""
        b = self.w.b
        whole = b.mul(b.sdiv(self.count, integer(TOGETHER)), integer(TOGETHER))
        for done, stop, together in ((None, whole, TOGETHER), (whole, self.count, 1)):
            left = stop if done is None else b.sub(stop, done)
            with loop(self.w, left, step=together) as turn:
                push = turn.index if done is None else b.add(done, turn.index)
                self._move(
                    start, length, self.w.slot(self.pushes, b.mul(push, integer(PUSH_FIELDS))), together
                )

    def _move(self, start: ir.Value, length: ir.Value, table: ir.Value, together: int) -> None:
        """Some numbers through neighbouring pushes of the table."""
        w = self.w
        target, beside = w.at(self.weights, start), w.at(self.kept, start)
        pushes = [
            (w.at(w.pointer_field(table, place), start), number_field(w, table, place + 1))
            for place in range(0, together * PUSH_FIELDS, PUSH_FIELDS)
        ]
        streams = [target, *([beside] if self.kind != "add" else []), *(source for source, _ in pushes)]

        def body(strip: Strip, lane: ir.Value) -> None:
            if strip.mask is None:
                for one in streams:
                    strip.fetch(w.at(one, w.b.add(lane, integer(AHEAD_BYTES // w.lanes.scalar_bytes))))
            values = strip.read(w.at(target, lane))
            if self.kind != "add":
                values += strip.read(w.at(beside, lane))
            for source, factor in pushes:
                values = self._moved(values, strip.read(w.at(source, lane)), factor)
            strip.write(w.at(target, lane), values[: strip.vectors])
            if self.kind != "add":
                strip.write(w.at(beside, lane), values[strip.vectors :])

        strips(w, VECTORS, length, body)

    def _moved(
        self, values: Sequence[ir.Value], push: Sequence[ir.Value], factor: ir.Value
    ) -> list[ir.Value]:
        """Weights, then what is kept, after one push."""
        w, b, count = self.w, self.w.b, len(push)
        weights, kept = values[:count], values[count:]
        if self.kind == "add":
            return [w.multiply_add(factor, p, one) for p, one in zip(push, weights, strict=True)]
        if self.kind == "momentum":
            down = b.fneg(factor)
            kept = [
                w.multiply_add(down, p, b.fmul(self.constant, v)) for p, v in zip(push, kept, strict=True)
            ]
            return [*(b.fadd(one, v) for one, v in zip(weights, kept, strict=True)), *kept]
        kept = [w.multiply_add(p, p, a) for p, a in zip(push, kept, strict=True)]
        steps = [
            b.fdiv(b.fmul(factor, p), b.fadd(w.root(a), self.constant))
            for p, a in zip(push, kept, strict=True)
        ]
        return [*(b.fsub(one, step) for one, step in zip(weights, steps, strict=True)), *kept]

    def _scale_to_one(self, row: ir.Value, length: ir.Value) -> None:
        """Divide a row by its norm, in float64; one whose squares have no positive finite sum is left."""
        b = self.w.b
        lines, wide = _of(self.w, self.w.lanes.dtype), _of(self.w, "float64")

        def widened(value: ir.Value) -> ir.Value:
            return value if value.type == wide.lanes.type else b.fpext(value, wide.lanes.type)

        whole = b.mul(b.sdiv(length, integer(CHAINS)), integer(CHAINS))
        tail, rest = lines.at(row, whole), lines.first_lanes(b.sub(length, whole))
        with loop(self.w, whole, wide.lanes.zero, step=CHAINS) as turn:
            one = widened(lines.read(lines.at(row, turn.index)))
            turn.next = [wide.multiply_add(one, one, turn.values[0])]
        one = widened(lines.read_part(tail, rest))
        total = _sum(wide, wide.multiply_add(one, one, turn.values[0]))
        infinite, none = ir.Constant(DOUBLE, float("inf")), ir.Constant(DOUBLE, 0.0)
        usable = b.and_(b.fcmp_ordered(">", total, none), b.fcmp_ordered("<", total, infinite))
        with b.if_then(usable):
            norm = wide.spread_value(total)
            factor = b.fdiv(wide.lanes.constant(1.0), wide.root(norm))

            def scaled(value: ir.Value) -> ir.Value:
                found = b.fmul(widened(value), factor)
                return found if found.type == value.type else b.fptrunc(found, value.type)

            with loop(self.w, whole, step=CHAINS) as turn:
                place = lines.at(row, turn.index)
                lines.write(place, scaled(lines.read(place)))
            lines.write_part(tail, scaled(lines.read_part(tail, rest)), rest)


def _of(w: Writer, dtype: str) -> Writer:
    """The same function's writer, with a vector of all chains; LLVM cuts it to what the processor has."""
    found = copy(w)
    found.lanes = Lanes(dtype, CHAINS)
    return found


def _sum(w: Writer, chains: ir.Value) -> ir.Value:
    """All chains, added in halves."""
    half = CHAINS // 2
    while half:
        other = w.pick(chains, chains, [(lane + half) % CHAINS for lane in range(CHAINS)])
        chains, half = w.b.fadd(chains, other), half // 2
    return w.b.extract_element(chains, ir.Constant(SHORT, 0))
