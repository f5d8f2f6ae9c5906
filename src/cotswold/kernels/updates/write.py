"""Kernels of updates: weights of shards, their optimizer state, and any number of pushes, each read once.

Knows: formulas in vectors, the lookup of a task's shard, the order of a row's sum. Does not know: tensors,
threads, the meaning of a push.

Every element is a separate chain: all pushes are applied in order while it is in a register. So neither
threads, vectors nor the number of pushes per call change a bit. Multiplications are fused with additions
where torch's optimisers fuse them: `add` has the bits of ``torch.optim.SGD``, `adagrad` those of
``torch.optim.Adagrad`` except for roots, which torch does not always round to nearest.

Memory bandwidth is the limit, and a core reads less than it reads and writes together. On Zen 5, with shards
of 1 MB and one thread, 16 pushes of `adagrad` in strips of eight lines, four pushes at a time, prefetched 2
KB ahead, reach 1.0 of the bandwidth of a dot product; without prefetch 0.7, with all 16 pushes at once 0.7. A
row is scaled to norm 1 while the next one is read, so that memory is never idle. At the end of a shard the
prefetch continues at the start of the next one, so that small shards run like one large shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal

from llvmlite import ir

from cotswold.kernels.compile.emit import I32, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import DOUBLE, Fields, JobFields, Strip, number_field, strips, tasks

WIDE_BYTES = 64
"""Bytes of the widest vectors, of which there are 32."""
VECTORS, STRIP_VECTORS = 8, 4
"""Vectors of weights in a strip: for the widest vectors, and for others."""
BYTE = ir.IntType(8)
CHAINS = 32
"""Partial sums of a row's squares, one for every 32nd element; they determine the bits of the norm."""
ROW_VECTORS = 2
"""Vectors of ``CHAINS`` elements of a row processed together."""
PUSHES_IN_REGISTERS = 4
"""Pushes applied while elements stay in registers."""
PART = 1 << 12
"""Elements per round of four pushes; they stay in the first-level cache."""
PREFETCH_BYTES = 2048
"""Prefetch distance; twice as far for a single push."""
Kind = Literal["add", "momentum", "adagrad"]
"""Update rules, for a push p with factor f and the constant c of the job.

`add`: ``w + f·p``. `momentum`: ``v = c·v − f·p``, then ``w + v``. `adagrad`: ``a + p·p``, then ``w − f·p/(√a
+ c)``.
"""
JOB = JobFields("shards", "count", "steps", "pushes", "factors", "constant")
"""Address and length of the table of shards, steps of the binary search for one, addresses of all pushes.

``factors`` are those of the pushes, float64.
"""
SHARD = Fields("first", "weights", "optimizer_state", "begin", "count", "size", "row", "task", "unit")
"""A shard: number of its first task, addresses, index of its first push and number of pushes, sizes.

``task`` are the elements of a task: whole rows, if the shard has rows; ``unit`` is 1 to scale them to norm 1.
"""


def write_update(kind: Kind, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task applies all pushes to some rows of a shard."""
    module = ir.Module(f"update_{kind}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        task = _Task(w, kind, job, number)
        with w.b.if_else(task.unit) as (in_rows, alone):
            with in_rows:
                _Rows(task).write()
            with alone:
                task.write()
    return module


class _Task:
    """Code generator of a task: some elements of a shard."""

    def __init__(self, w: FunctionBuilder, kind: Kind, job: ir.Value, number: ir.Value) -> None:
        self.w, self.kind, self.job = w, kind, job
        place = self._find_shard(number)
        entry = self._entry(place)
        self.weights, self.optimizer_state = (
            w.pointer_field(entry, one) for one in SHARD.places("weights", "optimizer_state")
        )
        self.pushes, self.factors = (w.pointer_field(job, one) for one in JOB.places("pushes", "factors"))
        self.first_push, self.count = w.field(entry, SHARD["begin"]), w.field(entry, SHARD["count"])
        self.size, self.row = w.field(entry, SHARD["size"]), w.field(entry, SHARD["row"])
        near = PREFETCH_BYTES // w.lanes.scalar_bytes
        one = w.b.icmp_signed("==", self.count, integer(1))
        self.prefetch_bytes = w.b.select(one, integer(2 * near), integer(near))
        task = w.field(entry, SHARD["task"])
        self.first_element = w.b.mul(w.b.sub(number, w.field(entry, SHARD["first"])), task)
        self.length = w.min_int(task, w.b.sub(self.size, self.first_element))
        self.unit = w.b.icmp_signed("!=", w.field(entry, SHARD["unit"]), integer(0))
        self._find_next_shard(place, entry)

    def _entry(self, place: ir.Value) -> ir.Value:
        return SHARD.record(self.w, self.w.pointer_field(self.job, JOB["shards"]), place)

    def _find_shard(self, number: ir.Value) -> ir.Value:
        """Return the last shard whose first task is not after task ``number``, by binary search."""
        w, b = self.w, self.w.b
        count, steps = w.field(self.job, JOB["count"]), w.field(self.job, JOB["steps"])
        with loop(w, steps, integer(0)) as turn:
            power = b.shl(integer(1), b.sub(b.sub(steps, integer(1)), turn.index))
            further = b.add(turn.values[0], power)
            is_one = b.icmp_signed("<", further, count)
            seen = b.select(is_one, further, integer(0))
            first = w.field(self._entry(seen), SHARD["first"])
            goes = b.and_(is_one, b.icmp_signed("<=", first, number))
            turn.next = [b.select(goes, further, turn.values[0])]
        return turn.values[0]

    def _find_next_shard(self, place: ir.Value, entry: ir.Value) -> None:
        """Compute the byte distance from this shard's end to the next shard's start, for prefetches."""
        w, b = self.w, self.w.b
        following = b.add(place, integer(1))
        is_one = b.icmp_signed("<", following, w.field(self.job, JOB["count"]))
        other = self._entry(b.select(is_one, following, place))
        self.next_count = b.select(is_one, w.field(other, SHARD["count"]), integer(0))
        self.size_bytes = b.mul(self.size, integer(w.lanes.scalar_bytes))
        self.next_shard_offset = {
            field: b.sub(w.field(other, field), b.add(w.field(entry, field), self.size_bytes))
            for field in SHARD.places("weights", "optimizer_state")
        }

    def write(self) -> None:
        """Process all elements of the task."""
        w, b = self.w, self.w.b
        with loop(w, self.length, step=PART) as part:
            here, left = b.add(self.first_element, part.index), b.sub(self.length, part.index)
            self.apply_pushes(integer(0), self.count, here, w.min_int(integer(PART), left))

    def apply_pushes(self, first: ir.Value, stop: ir.Value, start: ir.Value, length: ir.Value) -> None:
        """Apply pushes ``first`` to ``stop`` of the table to some elements."""
        w, b = self.w, self.w.b
        vectors = VECTORS if w.lanes.count * w.lanes.scalar_bytes == WIDE_BYTES else STRIP_VECTORS
        with loop(w, b.sub(stop, first), step=PUSHES_IN_REGISTERS) as turn:
            begin = b.add(first, turn.index)
            count = w.min_int(integer(PUSHES_IN_REGISTERS), b.sub(stop, begin))

            def body(strip: Strip, lane: ir.Value) -> None:
                self.store(
                    strip, b.add(start, lane), self.load_updated(strip, b.add(start, lane), begin, count)
                )

            strips(w, vectors, length, body)

    def load_updated(self, strip: Strip, place: ir.Value, first: ir.Value, count: ir.Value) -> list[ir.Value]:
        """Return the weights of a strip, then its optimizer state, after ``count`` pushes."""
        w, b = strip.w, strip.w.b
        values = strip.load(w.element_pointer(self.weights, place))
        self.prefetch(strip, self.weights, place, self.next_shard_offset[SHARD["weights"]])
        if self.kind != "add":
            self.prefetch(
                strip, self.optimizer_state, place, self.next_shard_offset[SHARD["optimizer_state"]]
            )
            values += strip.load(w.element_pointer(self.optimizer_state, place))
        constant = number_field(w, self.job, JOB["constant"])
        with loop(w, count, *values) as turn:
            number = b.add(first, turn.index)
            own = b.add(self.first_push, number)
            other = b.add(own, b.select(b.icmp_signed("<", number, self.next_count), self.count, integer(0)))
            start, beside = w.field(self.pushes, own), w.field(self.pushes, other)
            source = w.pointer_field(w.slot(self.pushes, own), 0)
            self.prefetch(strip, source, place, b.sub(beside, b.add(start, self.size_bytes)))
            push = strip.load(w.element_pointer(source, place))
            factor = number_field(w, w.slot(self.factors, own), 0)
            turn.next = apply_rule(w, self.kind, turn.values, push, factor, constant)
        return turn.values

    def prefetch(self, strip: Strip, base: ir.Value, place: ir.Value, next_offset: ir.Value) -> None:
        """Prefetch the strip of some lines later; after the shard's end it is ``next_offset`` bytes away."""
        w, b = strip.w, strip.w.b
        if strip.mask is not None:
            return
        ahead = b.add(place, self.prefetch_bytes)
        over = b.select(b.icmp_signed("<", ahead, self.size), integer(0), next_offset)
        there = b.gep(w.element_pointer(base, ahead), [over], source_etype=BYTE)
        for line in range(0, strip.size * w.lanes.scalar_bytes, WIDE_BYTES):
            w.prefetch_l1(w.element_pointer(there, line // w.lanes.scalar_bytes))

    def store(self, strip: Strip, place: ir.Value, values: Sequence[ir.Value]) -> None:
        """Store a strip's weights and optimizer state."""
        strip.store(strip.w.element_pointer(self.weights, place), list(values[: strip.vectors]))
        if self.kind != "add":
            strip.store(strip.w.element_pointer(self.optimizer_state, place), list(values[strip.vectors :]))


class _Rows:
    """Rows of norm 1: update a row and sum its squares, and scale the previous row at the same time."""

    def __init__(self, task: _Task) -> None:
        self.task = task
        self.w = _writer_for(task.w, task.w.lanes.dtype)
        self.wide = _writer_for(task.w, "float64")

    def write(self) -> None:
        """Process all rows of the task."""
        w, b, task = self.w, self.w.b, self.task
        begin, length = task.first_element, task.length
        before = b.sdiv(b.sub(task.count, integer(1)), integer(PUSHES_IN_REGISTERS))
        first = b.mul(before, integer(PUSHES_IN_REGISTERS))
        nothing = ir.Constant(DOUBLE, 0.0)
        rows = b.sdiv(length, task.row)
        with loop(w, rows, nothing) as turn:
            start = b.add(begin, b.mul(turn.index, task.row))
            task.apply_pushes(integer(0), first, start, task.row)
            turn.next = [self._row(start, first, turn.values[0])]
        last = b.add(begin, b.mul(b.sub(rows, integer(1)), task.row))
        with b.if_then(b.fcmp_ordered(">", turn.values[0], nothing)):
            self._for_each_strip(lambda strip, lane: self._scale(strip, b.add(last, lane), turn.values[0]))

    def _row(self, start: ir.Value, first: ir.Value, scale: ir.Value) -> ir.Value:
        """Apply the last pushes to a row, scale the previous one; return this row's factor, 0 for none."""
        b, task = self.w.b, self.task
        count, back = b.sub(task.count, first), b.sub(start, task.row)
        has_back = b.fcmp_ordered(">", scale, ir.Constant(DOUBLE, 0.0))

        def body(strip: Strip, lane: ir.Value, total: ir.Value) -> list[ir.Value]:
            place = b.add(start, lane)
            values = task.load_updated(strip, place, first, count)
            task.store(strip, place, values)
            with b.if_then(has_back):
                self._scale(strip, b.add(back, lane), scale)
            for value in map(self._widen, values[: strip.vectors]):
                total = self.wide.fma(value, value, total)
            return [total]

        return self._factor(self._for_each_strip(body, self.wide.lanes.zero)[0])

    def _for_each_strip(self, body: Callable[..., list[ir.Value]], *carried: ir.Value) -> list[ir.Value]:
        """``body(strip, first lane, *carried)`` for a row, in multiples of ``CHAINS`` elements at a time."""
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
        """1 over the norm, in float64; 0 if the sum of squares is not positive and finite."""
        b = self.w.b
        total = _sum(self.wide, chains)
        infinite, none = ir.Constant(DOUBLE, float("inf")), ir.Constant(DOUBLE, 0.0)
        usable = b.and_(b.fcmp_ordered(">", total, none), b.fcmp_ordered("<", total, infinite))
        root = self.w.scalar_sqrt(total)
        return b.select(usable, b.fdiv(ir.Constant(DOUBLE, 1.0), root), none)

    def _scale(self, strip: Strip, place: ir.Value, factor: ir.Value) -> list[ir.Value]:
        at, widest = self.w.element_pointer(self.task.weights, place), self.wide.splat(factor)
        found = [self.w.b.fmul(self._widen(value), widest) for value in strip.load(at)]
        strip.store(at, [self._narrow(value) for value in found])
        return []

    def _narrow(self, value: ir.Value) -> ir.Value:
        kind = self.w.lanes.type
        return value if value.type == kind else self.w.b.fptrunc(value, kind)

    def _widen(self, value: ir.Value) -> ir.Value:
        kind = self.wide.lanes.type
        return value if value.type == kind else self.w.b.fpext(value, kind)


def apply_rule(
    w: FunctionBuilder,
    kind: Kind,
    values: Sequence[ir.Value],
    push: Sequence[ir.Value],
    factor: ir.Value,
    constant: ir.Value,
) -> list[ir.Value]:
    """Return weights, then optimizer state, after one push."""
    b, count = w.b, len(push)
    weights, state = values[:count], values[count:]
    if kind == "add":
        return [w.fma(factor, p, one) for p, one in zip(push, weights, strict=True)]
    if kind == "momentum":
        down = b.fneg(factor)
        state = [w.fma(down, p, b.fmul(constant, v)) for p, v in zip(push, state, strict=True)]
        return [*(b.fadd(one, v) for one, v in zip(weights, state, strict=True)), *state]
    state = [w.fma(p, p, a) for p, a in zip(push, state, strict=True)]
    steps = [b.fdiv(b.fmul(factor, p), b.fadd(w.sqrt(a), constant)) for p, a in zip(push, state, strict=True)]
    return [*(b.fsub(one, step) for one, step in zip(weights, steps, strict=True)), *state]


def _writer_for(w: FunctionBuilder, dtype: str) -> FunctionBuilder:
    """Return a writer of the same function with vectors of all chains; LLVM splits them for the processor."""
    found = copy(w)
    found.lanes = Lanes(dtype, CHAINS)
    return found


def _sum(w: FunctionBuilder, chains: ir.Value) -> ir.Value:
    """Add all chains, in halves."""
    half = CHAINS // 2
    while half:
        other = w.shuffle(chains, chains, [(lane + half) % CHAINS for lane in range(CHAINS)])
        chains, half = w.b.fadd(chains, other), half // 2
    return w.b.extract_element(chains, ir.Constant(I32, 0))
