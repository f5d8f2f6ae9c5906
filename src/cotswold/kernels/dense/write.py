"""Kernels of passes over a layer of a dense network: activations, losses, slopes, sums over samples.

Knows: formulas in vectors, the order of every sum. Does not know: tensors, threads, products.

A layer is a matrix ``(row, lane)``: a row is a neuron, a lane is a sample. A task is a group of rows. Groups
fix the bits of sums over rows: one chain down the group for every lane. Sums over lanes, for the gradient of
biases, are 16 chains (every 16th lane each), which are added in halves. So neither threads nor the width of
vectors change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from llvmlite import ir

from cotswold.kernels.compile.emit import I32, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import JobFields, Strip, number_field, strips, tasks
from cotswold.kernels.microkernels.activation import write_activation, write_exp

GROUP = 64
"""Rows of a group; it determines the bits of sums over rows."""
CHAINS = 16
"""Partial sums of a row; their number determines the bits of the sum."""
PARTIALS = 3
"""Partial results of a group for each lane: losses or exponentials, its class's sum, the greatest other."""
LOWEST = -3.0e38
"""Less than every meaningful sum."""

Operand = Literal["sums", "other", "biases", "bias_gradient", "classes", "partials"]
"""Operands of a pass."""
OPERANDS: tuple[Operand, ...] = get_args(Operand)
JOB = JobFields(*OPERANDS, "rows", "lanes", "pitch", "other_pitch", "partial_pitch", "low", "high")
Step = Literal["activate", "squared", "softmax", "softmax_slopes", "slope"]


@dataclass(frozen=True)
class Operation:
    """Operation of a kernel on a layer.

    `activate`: sums become outputs. `squared`: sums of the last layer become slopes of the squared error, and
    losses are stored. `softmax`: sums become exponentials relative to the maximum of the group; that maximum
    and their sum are stored. `softmax_slopes`: exponentials become slopes of the cross entropy. `slope`:
    gradients of a hidden layer's outputs become gradients of its sums. ``values``: targets are values, not
    classes. ``slopes``: False to compute only losses.
    """

    step: Step
    activation: str = "identity"
    values: bool = False
    slopes: bool = True

    @property
    def name(self) -> str:
        """Name of its kernel."""
        return f"{self.step}_{self.activation}_{int(self.values)}{int(self.slopes)}"

    @property
    def sums_rows(self) -> bool:
        """True if it sums rows into the gradient of the biases."""
        return self.step in ("slope", "softmax_slopes") or (self.step == "squared" and self.slopes)


def write_pass(what: Operation, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is a group of rows."""
    module = ir.Module(f"dense_{what.name}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        group = _Group(w, what, job, number, scratch)
        if what.sums_rows:
            group.clear_rows()
        strips(w, max(2, CHAINS // w.lanes.count), group.lanes, group.write_strip)
        if what.sums_rows:
            group.add_rows()
    return module


class _Group:
    """One group of rows, the unit of a task."""

    def __init__(
        self, w: FunctionBuilder, what: Operation, job: ir.Value, number: ir.Value, scratch: ir.Value
    ) -> None:
        self.w, self.operation, self.chains = w, what, scratch
        b = w.b
        self.first = b.mul(number, integer(GROUP))
        self.rows = w.min_int(integer(GROUP), b.sub(w.field(job, JOB["rows"]), self.first))
        self.lanes, self.pitch = w.field(job, JOB["lanes"]), w.field(job, JOB["pitch"])
        self.other_pitch = w.field(job, JOB["other_pitch"])
        self.sums = w.element_pointer(w.pointer_field(job, JOB["sums"]), b.mul(self.first, self.pitch))
        self.other = w.element_pointer(
            w.pointer_field(job, JOB["other"]), b.mul(self.first, self.other_pitch)
        )
        self.biases = w.element_pointer(w.pointer_field(job, JOB["biases"]), self.first)
        self.bias_gradient = w.element_pointer(w.pointer_field(job, JOB["bias_gradient"]), self.first)
        self.classes = w.pointer_field(job, JOB["classes"])
        self.partial_pitch = w.field(job, JOB["partial_pitch"])
        skipped = b.mul(b.mul(number, integer(PARTIALS)), self.partial_pitch)
        self.partials = w.element_pointer(w.pointer_field(job, JOB["partials"]), skipped)
        self.low, self.high = (number_field(w, job, one) for one in (JOB["low"], JOB["high"]))

    def clear_rows(self) -> None:
        """Set the partial sums of all rows to 0."""
        with loop(self.w, integer(GROUP * CHAINS), step=self.w.lanes.count) as turn:
            self.w.store(self.w.element_pointer(self.chains, turn.index), self.w.lanes.zero)

    def add_rows(self) -> None:
        """Add the sums of all rows to the gradient of their biases."""
        w, count = self.w, self.w.lanes.count
        with loop(w, self.rows) as row:
            chains = w.element_pointer(self.chains, w.b.mul(row.index, integer(CHAINS)))
            parts = [w.load(w.element_pointer(chains, first)) for first in range(0, CHAINS, count)]
            while len(parts) > 1:
                half = len(parts) // 2
                parts = [w.b.fadd(parts[i], parts[i + half]) for i in range(half)]
            (total,), half = parts, count // 2
            while half:
                total = w.b.fadd(total, w.shuffle(total, total, [(i + half) % count for i in range(count)]))
                half //= 2
            place = w.element_pointer(self.bias_gradient, row.index)
            found = w.b.extract_element(total, ir.Constant(I32, 0))
            before = w.b.load(place, typ=w.lanes.scalar)
            w.b.store(w.b.fadd(before, found), place)

    def write_strip(self, strip: Strip, lane: ir.Value) -> None:
        """Process a strip of lanes in all rows."""
        if self.operation.step == "softmax":
            self._exponentials(strip, lane)
        elif self.operation.step == "squared":
            self._squared(strip, lane)
        elif self.operation.step == "softmax_slopes":
            self._softmax_slopes(strip, lane)
        elif self.operation.step == "slope":
            self._slopes(strip, lane)
        else:
            self._activate(strip, lane)

    def _activate(self, strip: Strip, lane: ir.Value) -> None:
        w = self.w
        with loop(w, self.rows, w.element_pointer(self.sums, lane)) as row:
            (place,) = row.values
            outputs = [
                write_activation(self.operation.activation, w, one)
                for one in self._sums(strip, row.index, place)
            ]
            strip.store(place, outputs)
            row.next = [w.element_pointer(place, self.pitch)]

    def _squared(self, strip: Strip, lane: ir.Value) -> None:
        w, vectors = self.w, strip.vectors
        classes = None if self.operation.values else self._classes(strip, lane)
        start = [w.lanes.zero] * vectors + [w.lanes.constant(LOWEST)] * (2 * vectors)
        with loop(
            w, self.rows, w.element_pointer(self.sums, lane), w.element_pointer(self.other, lane), *start
        ) as row:
            place, wanted, *found = row.values
            sums = self._sums(strip, row.index, place)
            outputs = [write_activation(self.operation.activation, w, one) for one in sums]
            losses, target_logit, best_other = (found[i * vectors :][:vectors] for i in range(PARTIALS))
            if classes is None:
                targets = strip.load(wanted)
            else:
                is_target = self._is_target(classes, row.index)
                targets = [w.b.select(one, self.high, self.low) for one in is_target]
                target_logit, best_other = self._update_best(is_target, sums, target_logit, best_other)
            errors = [w.b.fsub(y, t) for y, t in zip(outputs, targets, strict=True)]
            losses = [w.fma(e, e, so_far) for e, so_far in zip(errors, losses, strict=True)]
            if self.operation.slopes:
                twice = [w.b.fadd(e, e) for e in errors]
                self._store_slopes(strip, lane, row.index, place, self._activation_slopes(twice, outputs))
            following = w.element_pointer(wanted, self.other_pitch) if classes is None else wanted
            row.next = [w.element_pointer(place, self.pitch), following, *losses, *target_logit, *best_other]
        self._put_partials(strip, lane, row.values[2:])

    def _exponentials(self, strip: Strip, lane: ir.Value) -> None:
        w, vectors = self.w, strip.vectors
        classes = self._classes(strip, lane)
        start = [w.lanes.constant(LOWEST)] * (2 * vectors)
        with loop(w, self.rows, w.element_pointer(self.sums, lane), *start) as row:
            place, *found = row.values
            sums, is_target = self._sums(strip, row.index, place), self._is_target(classes, row.index)
            target_logit, best_other = self._update_best(is_target, sums, found[:vectors], found[vectors:])
            row.next = [w.element_pointer(place, self.pitch), *target_logit, *best_other]
        target_logit, best_other = row.values[1 : vectors + 1], row.values[vectors + 1 :]
        most = [w.maximum(one, other) for one, other in zip(target_logit, best_other, strict=True)]
        with loop(w, self.rows, w.element_pointer(self.sums, lane), *strip.zeros()) as row:
            place, *found = row.values
            less = [w.b.fsub(s, m) for s, m in zip(self._sums(strip, row.index, place), most, strict=True)]
            powers = [w.b.select(w.b.fcmp_unordered("uno", x, x), x, write_exp(w, x)) for x in less]
            if self.operation.slopes:
                strip.store(place, powers)
            added = [w.b.fadd(so_far, one) for so_far, one in zip(found, powers, strict=True)]
            row.next = [w.element_pointer(place, self.pitch), *added]
        self._put_partials(strip, lane, [*row.values[1:], *target_logit, *best_other])

    def _softmax_slopes(self, strip: Strip, lane: ir.Value) -> None:
        """Slopes of the cross entropy; the first partial number of the group scales its exponentials."""
        w, classes = self.w, self._classes(strip, lane)
        factors = strip.load_scratch(w.element_pointer(self.partials, lane))
        with loop(w, self.rows, w.element_pointer(self.sums, lane)) as row:
            (place,) = row.values
            targets = [w.b.select(one, self.high, self.low) for one in self._is_target(classes, row.index)]
            scaled = [w.b.fmul(e, f) for e, f in zip(strip.load(place), factors, strict=True)]
            slopes = [w.b.fsub(y, t) for y, t in zip(scaled, targets, strict=True)]
            self._store_slopes(strip, lane, row.index, place, slopes)
            row.next = [w.element_pointer(place, self.pitch)]

    def _slopes(self, strip: Strip, lane: ir.Value) -> None:
        w = self.w
        with loop(
            w, self.rows, w.element_pointer(self.sums, lane), w.element_pointer(self.other, lane)
        ) as row:
            place, outputs = row.values
            self._store_slopes(
                strip, lane, row.index, place, self._activation_slopes(strip.load(place), strip.load(outputs))
            )
            row.next = [w.element_pointer(place, self.pitch), w.element_pointer(outputs, self.other_pitch)]

    def _sums(self, strip: Strip, row: ir.Value, place: ir.Value) -> list[ir.Value]:
        """Sums with their biases."""
        bias = self.w.load_broadcast(self.w.element_pointer(self.biases, row))
        return [self.w.b.fadd(one, bias) for one in strip.load(place)]

    def _classes(self, strip: Strip, lane: ir.Value) -> list[ir.Value]:
        """Classes of lanes, which are padded to whole vectors."""
        w = self.w
        kind = ir.VectorType(I32, w.lanes.count)
        first = w.b.gep(self.classes, [lane], source_etype=I32)
        places = [
            w.b.gep(first, [integer(v * w.lanes.count)], source_etype=I32) for v in range(strip.vectors)
        ]
        return [w.b.load(one, typ=kind, align=4) for one in places]

    def _is_target(self, classes: list[ir.Value], row: ir.Value) -> list[ir.Value]:
        """Mask of the lanes whose class is this row."""
        w = self.w
        number = w.splat(w.b.trunc(w.b.add(self.first, row), I32))
        return [w.b.icmp_signed("==", one, number) for one in classes]

    def _update_best(
        self,
        is_target: list[ir.Value],
        sums: list[ir.Value],
        target_logit: list[ir.Value],
        best_other: list[ir.Value],
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """Update the sum of a lane's own class and the greatest of the others by another row."""
        w, least = self.w, self.w.lanes.constant(LOWEST)
        return (
            [
                w.b.select(here, s, so_far)
                for here, s, so_far in zip(is_target, sums, target_logit, strict=True)
            ],
            [
                w.maximum(so_far, w.b.select(here, least, s))
                for here, s, so_far in zip(is_target, sums, best_other, strict=True)
            ],
        )

    def _activation_slopes(self, gradients: list[ir.Value], outputs: list[ir.Value]) -> list[ir.Value]:
        """Turn gradients of outputs into gradients of sums."""
        w, one = self.w, self.w.lanes.constant(1.0)

        def slope(gradient: ir.Value, y: ir.Value) -> ir.Value:
            if self.operation.activation == "tanh":
                return w.b.fmul(gradient, w.fma(w.b.fneg(y), y, one))
            if self.operation.activation == "sigmoid":
                return w.b.fmul(gradient, w.b.fmul(y, w.b.fsub(one, y)))
            if self.operation.activation == "relu":
                return w.b.select(w.b.fcmp_ordered("<=", y, w.lanes.zero), w.lanes.zero, gradient)
            return gradient

        return [slope(gradient, y) for gradient, y in zip(gradients, outputs, strict=True)]

    def _store_slopes(
        self, strip: Strip, lane: ir.Value, row: ir.Value, place: ir.Value, slopes: list[ir.Value]
    ) -> None:
        """Write slopes, and add them to the partial sums of their row."""
        w = self.w
        strip.store(place, slopes)
        first = w.element_pointer(self.chains, w.b.mul(row, integer(CHAINS)))
        for v, value in enumerate(slopes):
            if strip.mask is not None:  # lanes beyond the last sample
                value = w.b.select(strip.mask, value, w.lanes.zero)
            chain = w.b.and_(w.b.add(lane, integer(v * w.lanes.count)), integer(CHAINS - 1))
            chains = w.element_pointer(first, chain)
            w.store(chains, w.b.fadd(w.load(chains), value))

    def _put_partials(self, strip: Strip, lane: ir.Value, found: list[ir.Value]) -> None:
        """Store the partial results of the group for each lane, padded to whole vectors."""
        w = self.w
        for number in range(PARTIALS):
            row = w.b.mul(integer(number), self.partial_pitch)
            place = w.element_pointer(self.partials, w.b.add(row, lane))
            strip.store_scratch(place, found[number * strip.vectors :][: strip.vectors])
