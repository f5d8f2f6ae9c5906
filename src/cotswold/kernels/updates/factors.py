"""Kernels of updates by factors: sum a tile of the product in registers and apply the rule there.

Knows: tiles, packing of factors, the order of sums. Does not know: tensors, threads, the meaning of a push.

    g[row, column] = sum over samples of errors[sample, row] activations[sample, column]

No gradient is ever in memory: weights and optimizer state are read and written once, for any number of
pushes. Both factors are packed first, so that a tile reads contiguous memory: activations in strips of a
tile's width, errors in groups of a tile's rows. Weights are prefetched four strips ahead; otherwise memory
and products wait for each other (8 samples: 0.5 instead of 1.1 of the lower bound, on Zen 5).

A sum is one chain of fused multiply-adds from 0 for every 256 samples, in the order of the samples; these
chains are added in order. Then the rule is applied as in `write`, push by push. So neither threads, vectors,
tiles nor the number of pushes per call change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import Fields, JobFields, Strip, max_int, number_field, tasks
from cotswold.kernels.updates.write import Kind, apply_rule

HEIGHTS = (6, 2, 1)
"""Rows of tiles: as many of the first as fit, then the others."""
K_BLOCK = 256
"""Samples of a chain."""
PUSH = Fields("errors", "activations", "samples", "factor")
"""A push: addresses of errors and activations, samples, factor (float64)."""
AHEAD_STRIPS = 4
"""Prefetch distance of weights, in strips of this row or the next rows."""
JOB = JobFields(
    *("weights", "optimizer_state", "pushes", "count"),
    *("rows", "columns", "band", "block", "errors", "constant"),
)
"""``pushes`` is the address of a table of ``count`` pushes, ``errors`` the place of packed errors in scratch.

``band`` are the rows of a task, ``block`` the columns whose activations are packed at a time, whole strips.
"""


def vectors_of(lanes: Lanes) -> int:
    """Vectors of a tile; fewer with 16 registers."""
    return 2 if lanes.count * lanes.scalar_bytes == 32 else 4


def write_factors(kind: Kind, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task applies all pushes to a band of rows."""
    module = ir.Module(f"factors_{kind}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        _Band(w, kind, job, scratch).write(number)
    return module


class _Push:
    """A push of the table, and the number of samples of all earlier pushes."""

    def __init__(self, w: FunctionBuilder, entry: ir.Value, before: ir.Value) -> None:
        self.errors, self.activations = (
            w.pointer_field(entry, one) for one in PUSH.places("errors", "activations")
        )
        self.examples, self.factor = w.field(entry, PUSH["samples"]), number_field(w, entry, PUSH["factor"])
        self.before = before


@dataclass(frozen=True, eq=False)
class _PrefetchPlan:
    """Prefetches during a product: one vector at each of these offsets, per iteration."""

    turns: ir.Value
    addresses: Sequence[ir.Value]


class _MaskedVectors:
    """Load and store of adjacent vectors of which only the first ``count`` lanes exist."""

    def __init__(self, w: FunctionBuilder, vectors: int, count: ir.Value) -> None:
        lefts = [w.b.sub(count, integer(v * w.lanes.count)) for v in range(vectors)]
        self.w, self.masks = w, [w.lane_mask(max_int(w, left, integer(0))) for left in lefts]

    def load(self, pointer: ir.Value) -> list[ir.Value]:
        """Load the vectors, with zeros in missing lanes."""
        return [
            self.w.masked_load(self.w.element_pointer(pointer, v * self.w.lanes.count), mask)
            for v, mask in enumerate(self.masks)
        ]

    def store(self, pointer: ir.Value, values: Sequence[ir.Value]) -> None:
        """Store the existing lanes."""
        for v, (value, mask) in enumerate(zip(values, self.masks, strict=True)):
            self.w.masked_store(self.w.element_pointer(pointer, v * self.w.lanes.count), value, mask)


_OfPush = Callable[[_Push], None]
_OfTile = Callable[[ir.Value, int], None]
_OfStrip = Callable[["Strip | _MaskedVectors", ir.Value, ir.Value], None]


class _Band:
    """Code generator of a task: all pushes on some rows of a shard."""

    def __init__(self, w: FunctionBuilder, kind: Kind, job: ir.Value, scratch: ir.Value) -> None:
        self.w, self.kind = w, kind
        self.vectors = vectors_of(w.lanes)
        self.strip = self.vectors * w.lanes.count
        self.weights, self.optimizer_state = (
            w.pointer_field(job, one) for one in JOB.places("weights", "optimizer_state")
        )
        self.pushes, self.count = w.pointer_field(job, JOB["pushes"]), w.field(job, JOB["count"])
        self.rows, self.columns = (w.field(job, one) for one in JOB.places("rows", "columns"))
        self.band, self.block = w.field(job, JOB["band"]), w.field(job, JOB["block"])
        self.activations, self.errors = scratch, w.element_pointer(scratch, w.field(job, JOB["errors"]))
        self.constant = number_field(w, job, JOB["constant"])

    def write(self, number: ir.Value) -> None:
        """Process all rows of task ``number``."""
        w, b = self.w, self.w.b
        first = b.mul(number, self.band)
        rows = w.min_int(self.band, b.sub(self.rows, first))
        self._for_each_push(lambda push: self._copy_errors(push, first, rows))
        with loop(w, b.sdiv(b.add(self.columns, b.sub(self.block, integer(1))), self.block)) as turn:
            start = b.mul(turn.index, self.block)
            width = w.min_int(self.block, b.sub(self.columns, start))
            self._for_each_push(lambda push: self._copy_activations(push, start, width))
            self._for_each_tile(
                rows, lambda row, height: self._tiles(b.add(first, row), row, height, start, width)
            )

    def _for_each_push(self, body: _OfPush) -> None:
        """Run ``body`` for every push of the table."""
        w, b = self.w, self.w.b
        with loop(w, self.count, integer(0)) as turn:
            push = _Push(w, PUSH.record(w, self.pushes, turn.index), turn.values[0])
            body(push)
            turn.next = [b.add(push.before, push.examples)]

    def _for_each_tile(self, rows: ir.Value, body: _OfTile) -> None:
        """Run ``body`` for every group of rows."""
        w, b, done = self.w, self.w.b, integer(0)
        for height in HEIGHTS:
            whole = b.mul(b.sdiv(b.sub(rows, done), integer(height)), integer(height))
            with loop(w, whole, step=height) as turn:
                body(b.add(done, turn.index), height)
            done = b.add(done, whole)

    def _copy_errors(self, push: _Push, first: ir.Value, rows: ir.Value) -> None:
        """Pack (sample, row) to (group of rows, sample, row of the group)."""
        w, b = self.w, self.w.b
        target = w.element_pointer(self.errors, b.mul(push.before, self.band))
        with loop(w, push.examples) as turn:
            source = w.element_pointer(push.errors, b.add(b.mul(turn.index, self.rows), first))

            def copy(row: ir.Value, height: int) -> None:
                place = w.element_pointer(
                    target, b.add(b.mul(row, push.examples), b.mul(turn.index, integer(height)))
                )
                for one in range(height):
                    value = b.load(w.element_pointer(source, b.add(row, integer(one))), typ=w.lanes.scalar)
                    b.store(value, w.element_pointer(place, one))

            self._for_each_tile(rows, copy)

    def _copy_activations(self, push: _Push, start: ir.Value, width: ir.Value) -> None:
        """Pack (sample, column) to (strip, sample, column of the strip), the last strip padded with zeros."""
        w, b = self.w, self.w.b
        target = w.element_pointer(self.activations, b.mul(push.before, self.block))
        size = b.mul(push.examples, integer(self.strip))
        with loop(w, push.examples) as turn:
            source = w.element_pointer(push.activations, b.add(b.mul(turn.index, self.columns), start))

            def copy(strip: Strip | _MaskedVectors, number: ir.Value, lane: ir.Value) -> None:
                place = w.element_pointer(
                    target, b.add(b.mul(number, size), b.mul(turn.index, integer(self.strip)))
                )
                for v, value in enumerate(strip.load(w.element_pointer(source, lane))):
                    w.store(w.element_pointer(place, v * w.lanes.count), value)

            self._for_each_strip(width, copy)

    def _for_each_strip(self, width: ir.Value, body: _OfStrip) -> None:
        """``body(strip, its index, its first lane)`` for all lanes; the last strip may be partial."""
        w, b = self.w, self.w.b
        whole = b.sdiv(width, integer(self.strip))
        with loop(w, whole) as turn:
            body(Strip(w, self.vectors, None), turn.index, b.mul(turn.index, integer(self.strip)))
        done = b.mul(whole, integer(self.strip))
        rest = b.sub(width, done)
        with b.if_then(b.icmp_signed(">", rest, integer(0))):
            body(_MaskedVectors(w, self.vectors, rest), whole, done)

    def _tiles(self, row: ir.Value, of_band: ir.Value, height: int, start: ir.Value, width: ir.Value) -> None:
        """Apply all pushes to some rows of a block of columns, strip by strip."""
        w, b = self.w, self.w.b

        def tile(strip: Strip | _MaskedVectors, number: ir.Value, lane: ir.Value) -> None:
            first = b.add(b.mul(row, self.columns), b.add(start, lane))
            places = [b.add(first, b.mul(integer(one), self.columns)) for one in range(height)]
            ahead = b.add(lane, integer(AHEAD_STRIPS * self.strip))
            down = b.sub(b.mul(integer(height), self.columns), width)
            beyond = b.select(b.icmp_signed("<", ahead, width), integer(0), down)
            asked = [b.add(place, b.add(integer(AHEAD_STRIPS * self.strip), beyond)) for place in places]

            def through(push: _Push) -> None:
                errors = w.element_pointer(
                    self.errors, b.add(b.mul(push.before, self.band), b.mul(of_band, push.examples))
                )
                size = b.mul(push.examples, integer(self.strip))
                activations = w.element_pointer(
                    self.activations, b.add(b.mul(push.before, self.block), b.mul(number, size))
                )
                turns = b.select(b.icmp_signed("==", push.before, integer(0)), self._prefetches, integer(0))
                sums = self._product(errors, activations, push.examples, height, _PrefetchPlan(turns, asked))
                for place, gradient in zip(places, sums, strict=True):
                    self._apply_rule(strip, place, gradient, push.factor)

            self._for_each_push(through)

        self._for_each_strip(width, tile)

    @property
    def _prefetches(self) -> ir.Value:
        """Iterations that prefetch all data of a later tile: one vector of all its rows in each."""
        return integer(self.vectors if self.kind == "add" else 2 * self.vectors)

    def _prefetch(self, turn: ir.Value, places: Sequence[ir.Value]) -> None:
        """Prefetch one vector of these rows, of the weights first, then of the optimizer state."""
        w, b = self.w, self.w.b
        stream, vector = self.weights, turn
        if self.kind != "add":
            is_first = b.icmp_signed("<", turn, integer(self.vectors))
            stream = b.select(is_first, self.weights, self.optimizer_state)
            vector = b.select(is_first, turn, b.sub(turn, integer(self.vectors)))
        start = w.element_pointer(stream, b.mul(vector, integer(w.lanes.count)))
        for place in places:
            w.prefetch_l1(w.element_pointer(start, place))

    def _product(
        self, errors: ir.Value, activations: ir.Value, examples: ir.Value, height: int, asking: _PrefetchPlan
    ) -> list[list[ir.Value]]:
        """Return the sums of a tile, row by row, and prefetch during the computation."""
        w, b = self.w, self.w.b

        def chain(
            begin: ir.Value, count: ir.Value, sums: Sequence[ir.Value], places: Sequence[ir.Value] = ()
        ) -> list[ir.Value]:
            with loop(w, count, *sums) as turn:
                if places:
                    self._prefetch(turn.index, places)
                example = b.add(begin, turn.index)
                source = w.element_pointer(activations, b.mul(example, integer(self.strip)))
                seen = [w.load(w.element_pointer(source, v * w.lanes.count)) for v in range(self.vectors)]
                numbers = w.element_pointer(errors, b.mul(example, integer(height)))
                for row in range(height):
                    error = w.load_broadcast(w.element_pointer(numbers, row))
                    for v in range(self.vectors):
                        at = row * self.vectors + v
                        turn.next[at] = w.fma(error, seen[v], turn.values[at])
            return turn.values

        zeros = [w.lanes.zero] * (height * self.vectors)
        first, early = w.min_int(examples, integer(K_BLOCK)), w.min_int(examples, asking.turns)
        with loop(w, b.sub(asking.turns, early)) as rest:
            self._prefetch(b.add(early, rest.index), asking.addresses)
        sums = chain(integer(0), early, zeros, asking.addresses)
        sums = chain(early, b.sub(first, early), sums)
        with loop(w, b.sub(examples, integer(K_BLOCK)), *sums, step=K_BLOCK) as k_block:
            begin = b.add(k_block.index, integer(K_BLOCK))
            more = chain(begin, w.min_int(b.sub(examples, begin), integer(K_BLOCK)), zeros)
            k_block.next = [b.fadd(one, other) for one, other in zip(k_block.values, more, strict=True)]
        return [k_block.values[row * self.vectors :][: self.vectors] for row in range(height)]

    def _apply_rule(
        self, strip: Strip | _MaskedVectors, place: ir.Value, gradient: Sequence[ir.Value], factor: ir.Value
    ) -> None:
        w = self.w
        values = strip.load(w.element_pointer(self.weights, place))
        if self.kind != "add":
            values += strip.load(w.element_pointer(self.optimizer_state, place))
        values = apply_rule(w, self.kind, values, gradient, factor, self.constant)
        strip.store(w.element_pointer(self.weights, place), values[: self.vectors])
        if self.kind != "add":
            strip.store(w.element_pointer(self.optimizer_state, place), values[self.vectors :])
