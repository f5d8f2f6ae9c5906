"""Kernels of L2 pooling: walks along the rows of a map, with the sums of small windows in registers.

Knows: the order of a window's sum, the values kept from column to column. Does not know: tensors, autograd.

Some rows of outputs are computed together. A walk takes one strip of lanes along them. At every column it
sums the window downwards for each row of outputs, and then the last columns across. Outputs are computed in
squares of two rows and two columns. Two neighbouring windows share all but their ends. Two neighbouring pairs
of windows share all but one pair of the terms between the ends:

    sum of rows 0..k-1 = end(0) + middle(1..k-1);  sum of rows 1..k = middle(1..k-1) + end(k)
    middle(1..k-1) = pair(1, 2) + pair(3, 4) + ...

Squares start at even rows and columns of the map, not of the task, so that the order of a sum depends only on
its position in the map. Nothing is subtracted. Rows and columns outside the map are zeros; outputs outside it
go to scratch. Quotients are computed at the first use of their row, and kept in a ring of rows in scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from cotswold.kernels.compile.emit import I32, I64, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import Strip, range_length, tasks
from cotswold.kernels.machine.execution import LINE
from cotswold.kernels.maps.pooling_block import (
    JOB,
    PoolBlock,
    PoolConfig,
    PoolKind,
    Sum,
    Values,
    ring_rows,
)


def scratch_elements(kind: PoolKind, config: PoolConfig, lanes: int, block: int, columns: int) -> int:
    """Elements of scratch per thread: zeros, discarded outputs, a ring of rows of quotients."""
    strip = config.vectors * lanes
    ring = ring_rows(config.size) * (columns + config.size) * block if kind.quotient else 0
    return 2 * strip + ring


def write_pooling(kind: PoolKind, config: PoolConfig, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows of a block of lanes."""
    module = ir.Module(f"{kind.name}_{config.size}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        (group, lane, beside), first, stop = _part_of(w, job, number)
        _Rows(w, kind, config, job, scratch, group, lane, beside).write(first, stop)
        if config.stream:
            w.b.fence("seq_cst")
    return module


def _part_of(
    w: FunctionBuilder, job: ir.Value, number: ir.Value
) -> tuple[tuple[ir.Value, ir.Value, ir.Value], ir.Value, ir.Value]:
    """Group of lanes, first lane, part of the columns, first row and end row of a task."""
    b = w.b
    parts, blocks = w.field(job, JOB["parts"]), w.field(job, JOB["blocks"])
    columns = w.field(job, JOB["column_parts"])
    beside, rest = b.urem(number, columns), b.udiv(number, columns)
    part, rest = b.urem(rest, parts), b.udiv(rest, parts)
    lane = b.mul(b.urem(rest, blocks), w.field(job, JOB["block"]))
    rows = w.field(job, JOB["part_rows"])
    first = b.mul(part, rows)
    stop = w.min_int(b.add(first, rows), w.field(job, JOB["out_height"]))
    return (b.udiv(rest, blocks), lane, beside), first, stop


def _middle(
    sums: Sum, size: int, pair: Callable[[int], Values], one: Callable[[int], Values]
) -> Values | None:
    """Sum terms 1 to ``size - 1`` in pairs; None if there are none."""
    total: Values | None = None
    for i in range(1, size - 1, 2):
        total = pair(i) if total is None else sums.merge(total, pair(i))
    if size % 2 == 0:
        total = sums.first(one(size - 1)) if total is None else sums.combine(one(size - 1), total)
    return total


def _select_from(numbers: Callable[[int], Values], first: int, i: int) -> Values:
    return numbers(first + i)


class _Rows(PoolBlock):
    """The rows of a task."""

    def write(self, first: ir.Value, stop: ir.Value) -> None:
        """Compute rows from ``first``, which is even, to ``stop``."""
        w, b, rows, size = self.w, self.w.b, self.config.rows, self.config.size
        if self.kind.quotient:
            self._write_first_quotients(b.sub(first, self.low))
        groups = b.sdiv(b.add(b.sub(stop, first), integer(rows - 1)), integer(rows))
        with loop(w, groups) as turn:
            y = b.add(first, b.mul(turn.index, integer(rows)))
            top = b.sub(y, self.low)
            inside = b.and_(
                b.icmp_signed(">=", top, integer(0)),
                b.and_(
                    b.icmp_signed("<=", b.add(top, integer(rows + size - 1)), self.in_height),
                    b.icmp_signed("<=", b.add(y, integer(rows)), stop),
                ),
            )
            whole = b.sdiv(self.lanes, integer(self.strip_size))
            ahead = _Prefetch(self, y, top)
            with b.if_else(inside) as (then, otherwise):
                with then, loop(w, whole, integer(0), integer(0)) as strips:
                    lane = b.mul(strips.index, integer(self.strip_size))
                    walk = _Walk(self, Strip(w, self.config.vectors, None), lane, y, top, None, ahead)
                    strips.next = walk.write(strips.values)
                with otherwise, loop(w, whole, integer(0), integer(0)) as strips:
                    lane = b.mul(strips.index, integer(self.strip_size))
                    walk = _Walk(self, Strip(w, self.config.vectors, None), lane, y, top, stop, ahead)
                    strips.next = walk.write(strips.values)
            done = b.mul(whole, integer(self.strip_size))
            rest = b.sub(self.lanes, done)
            with loop(w, rest, step=w.lanes.count) as parts:
                strip = Strip(w, 1, b.sub(rest, parts.index))
                walk = _Walk(self, strip, b.add(done, parts.index), y, top, stop, None)
                walk.write([integer(0), integer(0)])

    def _write_first_quotients(self, top: ir.Value) -> None:
        """Compute the quotients of the rows that the first windows share with the windows above."""
        w, b = self.w, self.w.b
        width = b.add(b.sub(self.right, self.left), integer(self.config.size))
        with loop(w, integer(self.config.size - 1)) as down, loop(w, width) as along:
            y, x = b.add(top, down.index), b.add(self.source_left, along.index)
            there = b.and_(self.is_within(y, self.in_height), self.is_within(x, self.in_width))
            with loop(w, self.lanes, step=w.lanes.count) as turn:
                strip = Strip(w, 1, b.sub(self.lanes, turn.index))
                values = self.quotients(
                    strip,
                    self.second.position_address(y, x),
                    self.input.position_address(y, x),
                    turn.index,
                    there,
                )
                strip.store_scratch(w.element_pointer(self.ring_place(y, along.index), turn.index), values)


class _Prefetch:
    """Prefetch of the lines that the next rows of outputs read for the first time.

    Lines are prefetched in memory order, a few at every column of every strip: a single strip would touch one
    page per line.
    """

    def __init__(self, block: PoolBlock, y: ir.Value, top: ir.Value) -> None:
        self.w, self.block = block.w, block
        self.step = max(1, LINE // (block.w.lanes.count * block.w.lanes.scalar_bytes)) * block.w.lanes.count
        b, rows, size = self.w.b, block.config.rows, block.config.size
        maps = [block.input] if block.kind.grad or not block.kind.quotient else []
        maps += [block.second] if block.kind.quotient else []
        new = [b.add(top, integer(i + rows)) for i in range(size - 1, size - 1 + rows)]
        self.addresses = [(one, one.position_address(row, block.source_left)) for one in maps for row in new]
        if block.kind.quotient:
            below = [b.add(y, integer(i + rows)) for i in range(rows)]
            self.addresses += [
                (block.factor, block.factor.position_address(row, block.left)) for row in below
            ]

    def fetch(self, position: Values, columns: int) -> Values:
        """Prefetch the lines of every row for ``columns`` columns of a strip; return the next position."""
        w, b = self.w, self.w.b
        lane, column = position
        for _ in range(columns * self.block.strip_size // self.step):
            for one, start in self.addresses:
                w.prefetch_l2(w.element_pointer(start, b.add(b.mul(column, one.column), lane)))
            lane = b.add(lane, integer(self.step))
            over = b.icmp_signed(">=", lane, self.block.lanes)
            lane, column = b.select(over, integer(0), lane), b.add(column, b.zext(over, I64))
        return [lane, column]


class _Walk:
    """A walk of a strip of lanes along some rows of outputs; with ``stop``, rows may be outside the map."""

    def __init__(
        self,
        block: PoolBlock,
        strip: Strip,
        lane: ir.Value,
        y: ir.Value,
        top: ir.Value,
        stop: ir.Value | None,
        ahead: _Prefetch | None,
    ) -> None:
        self.ahead = ahead
        self.block, self.strip, self.lane, self.w = block, strip, lane, block.w
        self.size, self.rows = block.config.size, block.config.rows
        b, w = self.w.b, self.w
        count = self.rows + self.size - 1
        self.sources = [b.add(top, integer(i)) for i in range(count)]
        self.targets = [b.add(y, integer(i)) for i in range(self.rows)]
        self.source_masks: list[ir.Value | None] = [None] * count
        self.target_masks: list[ir.Value | None] = [None] * self.rows
        if stop is not None:
            self.source_masks = [block.is_within(one, block.in_height) for one in self.sources]
            self.target_masks = [b.icmp_signed("<", one, stop) for one in self.targets]
        self.is_unbounded = stop is None
        zero = integer(0)
        self.input = [
            w.element_pointer(block.input.position_address(one, zero), lane) for one in self.sources
        ]
        self.output = [
            w.element_pointer(block.output.position_address(one, zero), lane) for one in self.targets
        ]
        if block.kind.quotient:
            self.second = [
                w.element_pointer(block.second.position_address(one, zero), lane) for one in self.sources
            ]
            self.factor = [
                w.element_pointer(block.factor.position_address(one, zero), lane) for one in self.targets
            ]
            self.ring = [w.element_pointer(block.ring_place(one, zero), lane) for one in self.sources]

    def write(self, position: Values) -> Values:
        """Process all columns of the task; take and return the position of the prefetch."""
        w, b, block, size = self.w, self.w.b, self.block, self.size
        columns = {}
        for j in range(size - 1):
            x = b.add(block.source_left, integer(j))
            columns[j] = self._column(x, block.is_within(x, block.in_width))
        if self.ahead is not None:
            position = self.ahead.fetch(position, size - 1)
        state = [*position, *self._first_state(columns)]
        width = b.sub(block.right, block.left)
        turns = b.sdiv(b.add(width, integer(1)), integer(2))
        done: ir.Value = integer(0)
        if self.is_unbounded:
            covered = b.sub(b.sub(block.in_width, block.source_left), integer(size - 1))
            sure = b.sdiv(range_length(w, integer(0), w.min_int(width, covered)), integer(2))
            state = self._write_turns(integer(0), sure, state, sure=True)
            done = sure
        return self._write_turns(done, turns, state, sure=False)[:2]

    def _write_turns(self, first: ir.Value, stop: ir.Value, state: Values, *, sure: bool) -> Values:
        w, b = self.w, self.w.b
        with loop(w, b.sub(stop, first), *state) as turn:
            along = b.mul(b.add(first, turn.index), integer(2))
            position = turn.values[:2]
            if self.ahead is not None:
                position = self.ahead.fetch(position, 2)
            turn.next = [*position, *self._compute_columns(along, turn.values[2:], sure)]
        return turn.values

    @property
    def _carried_values(self) -> list[tuple[str, int]]:
        """Values known from previous columns: single columns, by their number from the left, and pairs."""
        size = self.size
        singles = [j for j in range(size - 1) if j % 2 == 0 or (j == size - 2 and size % 2)]
        return [("one", j) for j in singles] + [("pair", i) for i in range(1, size - 2, 2)]

    def _first_state(self, columns: dict[int, list[Values]]) -> Values:
        flat = []
        for row in range(self.rows):
            for name, j in self._carried_values:
                one = columns[j][row]
                flat += one if name == "one" else self.block.across.merge(one, columns[j + 1][row])
        return flat

    def _compute_columns(self, along: ir.Value, state: Values, sure: bool) -> Values:
        """Compute two columns of outputs; return the values to keep for the next two."""
        b, block, size, vectors = self.w.b, self.block, self.size, self.strip.vectors
        new = []
        for j in (size - 1, size):
            x = b.add(block.source_left, b.add(along, integer(j)))
            new.append(self._column(x, None if sure else block.is_within(x, block.in_width)))
        following: Values = []
        kept = self._carried_values
        for row in range(self.rows):
            known: dict[tuple[str, int], Values] = {}
            for i, key in enumerate(kept):
                start = (row * len(kept) + i) * vectors
                known[key] = list(state[start : start + vectors])
            known["one", size - 1], known["one", size] = new[0][row], new[1][row]

            def pair(i: int, known: dict[tuple[str, int], Values] = known) -> Values:
                if ("pair", i) not in known:
                    known["pair", i] = block.across.merge(known["one", i], known["one", i + 1])
                return known["pair", i]

            def one(j: int, known: dict[tuple[str, int], Values] = known) -> Values:
                return known["one", j]

            middle = _middle(block.across, size, pair, one)
            for j in range(2):
                end = known["one", size * j]
                total = end if middle is None else block.across.merge(end, middle)
                self._finish(row, b.add(block.left, b.add(along, integer(j))), total, sure)
            for name, j in kept:
                following += known["one", j + 2] if name == "one" else pair(j + 2)
        return following

    def _column(self, x: ir.Value, there: ir.Value | None) -> list[Values]:
        """Sums of a column downwards, for every row of outputs."""
        block, size = self.block, self.size
        values = [self._summand(i, x, there) for i in range(len(self.sources))]
        if block.kind.quotient:
            self._keep_quotients(values, x)
        pairs: dict[int, Values] = {}

        def pair(i: int) -> Values:
            if i not in pairs:
                pairs[i] = block.down.combine(values[i + 1], block.down.first(values[i]))
            return pairs[i]

        sums = []
        for row in range(0, self.rows, 2):
            middle = _middle(
                block.down,
                size,
                partial(_select_from, pair, row),
                partial(_select_from, values.__getitem__, row),
            )
            for end in (values[row], values[row + size]):
                sums.append(block.down.first(end) if middle is None else block.down.combine(end, middle))
        return sums

    def _summand(self, i: int, x: ir.Value, there: ir.Value | None) -> Values:
        """Term to sum at a row and column."""
        w, b, block = self.w, self.w.b, self.block
        both = self._conjunction(self.source_masks[i], there)
        if not block.kind.quotient:
            place = w.element_pointer(self.input[i], b.mul(x, block.input.column))
            return self.strip.load(block.address_or(both, place, block.zeros))
        if i < self.size - 1:
            return self.strip.load_scratch(self._ring(i, x))
        below = w.element_pointer(self.second[i], b.mul(x, block.second.column))
        above = w.element_pointer(self.input[i], b.mul(x, block.input.column))
        return block.quotients(self.strip, below, above, integer(0), both)

    def _ring(self, i: int, x: ir.Value) -> ir.Value:
        b, block = self.w.b, self.block
        return self.w.element_pointer(self.ring[i], b.mul(b.sub(x, block.source_left), block.ring_pitch))

    def _keep_quotients(self, values: list[Values], x: ir.Value) -> None:
        """Keep the last rows, which are the first of the next windows."""
        for i in range(max(self.size - 1, self.rows), len(values)):
            self.strip.store_scratch(self._ring(i, x), values[i])

    def _conjunction(self, one: ir.Value | None, other: ir.Value | None) -> ir.Value | None:
        if one is None or other is None:
            return one if other is None else other
        return self.w.b.and_(one, other)

    def _finish(self, row: int, x: ir.Value, total: Values, sure: bool) -> None:
        """Finish a sum and write it to the map."""
        w, b, block = self.w, self.w.b, self.block
        there = None if sure else b.icmp_signed("<", x, block.right)
        both = self._conjunction(self.target_masks[row], there)
        if block.kind.quotient:
            place = w.element_pointer(self.factor[row], b.mul(x, block.factor.column))
            factors = self.strip.load(block.address_or(both, place, block.zeros))
            found = [b.fmul(one, other) for one, other in zip(factors, total, strict=True)]
        else:
            found = [w.sqrt(b.fadd(one, block.scalar)) for one in total]
        output = w.element_pointer(self.output[row], b.mul(x, block.output.column))
        self._store(block.address_or(both, output, block.discard), found)

    def _store(self, place: ir.Value, values: Values) -> None:
        if not self.block.config.stream or self.strip.mask is not None:
            self.strip.store(place, values)
            return
        w = self.w
        past = w.function.module.add_metadata([ir.Constant(I32, 1)])
        size = w.lanes.count * w.lanes.scalar_bytes
        for v, value in enumerate(values):
            w.b.store(value, self.strip.vector_address(place, v), align=size).set_metadata(
                "nontemporal", past
            )
