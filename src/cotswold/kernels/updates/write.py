"""Kernels of updates: weights, what is kept beside them, and any number of pushes, each read once.

Knows: formulas in vectors, how a task goes through its numbers, the order of a row's sum. Does not know:
tensors, threads, what a push is.

Every number is a chain of its own: it goes through all pushes in their order while it is in a register, so
neither threads, nor vectors, nor how many pushes there are at once change a bit. Multiplications are fused
with additions where torch's optimisers fuse them: `add` has the bits of ``torch.optim.SGD``, `adagrad` those
of ``torch.optim.Adagrad`` but for its roots, which torch does not always round to nearest.

Memory bounds all of it, and a core reads less than it reads and writes together. On Zen 5, with shards of
1 MB and one thread, 16 pushes of `adagrad` in strips of eight lines, four pushes at a time, asked for 2 KB
ahead, reach 1.0 of what a dot product reads; nothing asked for early 0.7, all 16 at once 0.7. A row is scaled
to norm 1 while the next one is read, so that memory is never idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from enum import IntEnum
from typing import Literal

from llvmlite import ir

from cotswold.kernels.compile.emit import SHORT, Lanes, Writer, integer, loop
from cotswold.kernels.maps.tasks import DOUBLE, JobHead, Strip, number_field, strips, tasks

WIDE_BYTES = 64
"""Bytes of the widest vectors, of which there are 32."""
VECTORS, FEWER_VECTORS = 8, 4
"""Vectors of weights that go through all pushes together: of the widest, of others."""
CHAINS = 32
"""Chains in which the squares of a row are summed, of every 32nd number; part of what the norm is, to the
bit."""
ROW_VECTORS = 2
"""Vectors of so many numbers of a row that go together."""
TOGETHER = 4
"""Pushes that numbers go through without leaving their registers."""
PART = 1 << 12
"""Numbers that go through these before they go through the next four; they stay in the first cache."""
AHEAD_BYTES = 2048
"""How far ahead of its use a line is asked for; twice as far where there is one push alone."""
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
    """How many pushes there are."""
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
        task = _Task(w, kind, job)
        with w.b.if_else(task.unit) as (in_rows, alone):
            with in_rows:
                _Rows(task).write(number)
            with alone:
                task.write(number)
    return module


class _Task:
    """Some numbers of a shard, and what every task knows."""

    def __init__(self, w: Writer, kind: Kind, job: ir.Value) -> None:
        self.w, self.kind, self.job = w, kind, job
        self.weights, self.kept = (w.pointer_field(job, one) for one in (UpdateJob.WEIGHTS, UpdateJob.KEPT))
        self.pushes = w.pointer_field(job, UpdateJob.PUSHES)
        self.count, self.size = w.field(job, UpdateJob.COUNT), w.field(job, UpdateJob.SIZE)
        self.row = w.field(job, UpdateJob.ROW)
        near = AHEAD_BYTES // w.lanes.scalar_bytes
        one = w.b.icmp_signed("==", self.count, integer(1))
        self.ahead = w.b.select(one, integer(2 * near), integer(near))
        self.task_size = w.b.mul(self.row, w.field(job, UpdateJob.TASK_ROWS))
        self.unit = w.b.icmp_signed("!=", w.field(job, UpdateJob.UNIT), integer(0))

    def write(self, number: ir.Value) -> None:
        """All numbers of the task of this number."""
        w, b = self.w, self.w.b
        begin = b.mul(number, self.task_size)
        length = w.least(self.task_size, b.sub(self.size, begin))
        with loop(w, length, step=PART) as part:
            here = b.add(begin, part.index)
            self.move_some(integer(0), self.count, here, w.least(integer(PART), b.sub(length, part.index)))

    def move_some(self, first: ir.Value, stop: ir.Value, start: ir.Value, length: ir.Value) -> None:
        """Some numbers through pushes ``first`` to ``stop`` of the table."""
        w, b = self.w, self.w.b
        vectors = VECTORS if w.lanes.count * w.lanes.scalar_bytes == WIDE_BYTES else FEWER_VECTORS
        with loop(w, b.sub(stop, first), step=TOGETHER) as turn:
            begin = b.add(first, turn.index)
            count = w.least(integer(TOGETHER), b.sub(stop, begin))

            def body(strip: Strip, lane: ir.Value) -> None:
                self.keep(strip, b.add(start, lane), self.through(strip, b.add(start, lane), begin, count))

            strips(w, vectors, length, body)

    def through(self, strip: Strip, place: ir.Value, first: ir.Value, count: ir.Value) -> list[ir.Value]:
        """The weights of a strip at a place, then what is kept, after so many pushes."""
        w, b = strip.w, strip.w.b
        values = strip.read(w.at(self.weights, place))
        self.ask(strip, w.at(self.weights, place))
        if self.kind != "add":
            self.ask(strip, w.at(self.kept, place))
        if self.kind != "add":
            values += strip.read(w.at(self.kept, place))
        constant = number_field(w, self.job, UpdateJob.CONSTANT)
        table = w.slot(self.pushes, b.mul(first, integer(PUSH_FIELDS)))
        with loop(w, b.mul(count, integer(PUSH_FIELDS)), *values, step=PUSH_FIELDS) as turn:
            entry = w.slot(table, turn.index)
            source = w.at(w.pointer_field(entry, 0), place)
            self.ask(strip, source)
            push = strip.read(source)
            turn.next = moved(w, self.kind, turn.values, push, number_field(w, entry, 1), constant)
        return turn.values

    def ask(self, strip: Strip, place: ir.Value) -> None:
        """Ask for the strip that is read some lines later."""
        w = strip.w
        if strip.mask is not None:
            return
        ahead = w.at(place, self.ahead)
        for line in range(0, strip.size * w.lanes.scalar_bytes, WIDE_BYTES):
            w.fetch(w.at(ahead, line // w.lanes.scalar_bytes))

    def keep(self, strip: Strip, place: ir.Value, values: Sequence[ir.Value]) -> None:
        """Write a strip's weights and what is kept."""
        strip.write(strip.w.at(self.weights, place), list(values[: strip.vectors]))
        if self.kind != "add":
            strip.write(strip.w.at(self.kept, place), list(values[strip.vectors :]))


class _Rows:
    """Rows of norm 1: a row is updated and its squares are summed, while the row before is scaled."""

    def __init__(self, task: _Task) -> None:
        self.task = task
        self.w = _of(task.w, task.w.lanes.dtype)
        self.wide = _of(task.w, "float64")

    def write(self, number: ir.Value) -> None:
        """All rows of the task of this number."""
        w, b, task = self.w, self.w.b, self.task
        begin = b.mul(number, task.task_size)
        length = w.least(task.task_size, b.sub(task.size, begin))
        before = b.sdiv(b.sub(task.count, integer(1)), integer(TOGETHER))
        first = b.mul(before, integer(TOGETHER))
        nothing = ir.Constant(DOUBLE, 0.0)
        rows = b.sdiv(length, task.row)
        with loop(w, rows, nothing) as turn:
            start = b.add(begin, b.mul(turn.index, task.row))
            task.move_some(integer(0), first, start, task.row)
            turn.next = [self._row(start, first, turn.values[0])]
        last = b.add(begin, b.mul(b.sub(rows, integer(1)), task.row))
        with b.if_then(b.fcmp_ordered(">", turn.values[0], nothing)):
            self._each(lambda strip, lane: self._scale(strip, b.add(last, lane), turn.values[0]))

    def _row(self, start: ir.Value, first: ir.Value, scale: ir.Value) -> ir.Value:
        """Update a row by the last pushes, scale the one before; the factor of this row, 0 for none."""
        b, task = self.w.b, self.task
        count, back = b.sub(task.count, first), b.sub(start, task.row)
        has_back = b.fcmp_ordered(">", scale, ir.Constant(DOUBLE, 0.0))

        def body(strip: Strip, lane: ir.Value, total: ir.Value) -> list[ir.Value]:
            place = b.add(start, lane)
            values = task.through(strip, place, first, count)
            task.keep(strip, place, values)
            with b.if_then(has_back):
                self._scale(strip, b.add(back, lane), scale)
            for value in map(self._widened, values[: strip.vectors]):
                total = self.wide.multiply_add(value, value, total)
            return [total]

        return self._factor(self._each(body, self.wide.lanes.zero)[0])

    def _each(self, body: Callable[..., list[ir.Value]], *carried: ir.Value) -> list[ir.Value]:
        """``body(strip, first lane, *carried)`` for a row, in multiples of ``CHAINS`` numbers at a time."""
        w, b, row = self.w, self.w.b, self.task.row
        done, rest = integer(0), row
        for vectors in (ROW_VECTORS, 1):
            some = vectors * CHAINS
            whole = b.mul(b.sdiv(rest, integer(some)), integer(some))
            with loop(w, whole, *carried, step=some) as turn:
                turn.next = body(Strip(w, vectors, None), b.add(done, turn.index), *turn.values)
            carried, done, rest = tuple(turn.values), b.add(done, whole), b.sub(rest, whole)
        with loop(w, rest, *carried, step=CHAINS) as turn:
            turn.next = body(Strip(w, 1, rest), done, *turn.values)
        return turn.values

    def _factor(self, chains: ir.Value) -> ir.Value:
        """1 over the norm, in float64; 0 for a row whose squares have no positive finite sum: it is left."""
        b = self.w.b
        total = _sum(self.wide, chains)
        infinite, none = ir.Constant(DOUBLE, float("inf")), ir.Constant(DOUBLE, 0.0)
        usable = b.and_(b.fcmp_ordered(">", total, none), b.fcmp_ordered("<", total, infinite))
        root = self.w.root_of(total)
        return b.select(usable, b.fdiv(ir.Constant(DOUBLE, 1.0), root), none)

    def _scale(self, strip: Strip, place: ir.Value, factor: ir.Value) -> list[ir.Value]:
        at, widest = self.w.at(self.task.weights, place), self.wide.spread_value(factor)
        found = [self.w.b.fmul(self._widened(value), widest) for value in strip.read(at)]
        strip.write(at, [self._narrowed(value) for value in found])
        return []

    def _narrowed(self, value: ir.Value) -> ir.Value:
        kind = self.w.lanes.type
        return value if value.type == kind else self.w.b.fptrunc(value, kind)

    def _widened(self, value: ir.Value) -> ir.Value:
        kind = self.wide.lanes.type
        return value if value.type == kind else self.w.b.fpext(value, kind)


def moved(
    w: Writer,
    kind: Kind,
    values: Sequence[ir.Value],
    push: Sequence[ir.Value],
    factor: ir.Value,
    constant: ir.Value,
) -> list[ir.Value]:
    """Weights, then what is kept, after one push."""
    b, count = w.b, len(push)
    weights, kept = values[:count], values[count:]
    if kind == "add":
        return [w.multiply_add(factor, p, one) for p, one in zip(push, weights, strict=True)]
    if kind == "momentum":
        down = b.fneg(factor)
        kept = [w.multiply_add(down, p, b.fmul(constant, v)) for p, v in zip(push, kept, strict=True)]
        return [*(b.fadd(one, v) for one, v in zip(weights, kept, strict=True)), *kept]
    kept = [w.multiply_add(p, p, a) for p, a in zip(push, kept, strict=True)]
    steps = [b.fdiv(b.fmul(factor, p), b.fadd(w.root(a), constant)) for p, a in zip(push, kept, strict=True)]
    return [*(b.fsub(one, step) for one, step in zip(weights, steps, strict=True)), *kept]


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
