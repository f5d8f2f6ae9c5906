"""The micro-kernel for half precision: one register tile of float32 sums of products of units.

Knows: rows and vectors of a tile, the addresses of its operands. Does not know: layers, how units are made.

It is `tile` for units. B is packed (whole vectors of units in sequence), or the tile packs it on the fly. If
rows of A are contiguous, A is packed too, or read in place; otherwise adjacent k are adjacent in A. Sums stay
in float32, in scratch between two calls, and are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, integer, loop
from cotswold.kernels.microkernels.half_units import Units, unit_at
from cotswold.kernels.microkernels.job import ENTRY
from cotswold.kernels.microkernels.kinds import Tile, TileConfig
from cotswold.kernels.microkernels.tile import GROUP, LINE_BYTES, TermSum

_NUMBERS_A_LINE = LINE_BYTES // 2


@dataclass(frozen=True)
class UnitTileConfig:
    """Layout of a tile's operands.

    ``a_rows_adjacent``: as in `tile.TileConfig`. ``packed``: A is packed, or widened if rows are not
    adjacent. ``fresh``: B is not packed yet; the tile reads it in place and packs it.
    """

    a_rows_adjacent: bool
    packed: bool = False
    fresh: bool = False


@dataclass(frozen=True, eq=False)
class LaneTile:
    """A tile of lanes: index in the group, first lane, variant, lanes in the last vector, packed B."""

    number: ir.Value
    lane: ir.Value
    variant: ir.Value
    last: ir.Value
    vectors: ir.Value
    packed: ir.Value


@dataclass(frozen=True, eq=False)
class RowTile:
    """A tile of rows: index in the task, first row in the offsets, index of its height, offset in A."""

    number: ir.Value
    row: ir.Value
    height: ir.Value
    a: ir.Value


def write_half_tile(
    module: ir.Module, name: str, units: Units, shape: Tile, config: UnitTileConfig, masked: bool
) -> ir.Function:
    """Generate one micro-kernel; ``masked``: only the first lanes of the last vector exist.

    Arguments: entries, their number (if both operands are packed: the prefetch address of A, rows of units),
    A, its stride (in units if packed), packed B, B in place, its stride, sums in scratch, C, the rows'
    offsets in C, lanes in the last vector, whether sums start in scratch (not 0) or at 0, whether they are
    complete and go to C (not 0) or to scratch.
    """
    kind = ir.FunctionType(
        VOID,
        [POINTER, I64, POINTER, I64, POINTER, POINTER, I64, POINTER, POINTER, POINTER, I64, I64, I64],
    )
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    *operands, scratch, c, offsets, last, keep, final = function.args
    w = FunctionBuilder(function, units.numbers)
    flat = [(row, v) for row in range(shape.rows) for v in range(shape.vectors)]
    walk = _Walk(w, units, shape, config, last if masked else None)
    sums = walk.write(operands, _initial_sums(w, units, len(flat), scratch, keep))
    with w.b.if_else(w.b.icmp_signed("!=", final, integer(0))) as (finished, unfinished):
        with finished:
            for (row, v), value in zip(flat, sums, strict=True):
                place = w.element_pointer(w.element_pointer(c, w.field(offsets, row)), v * units.lanes)
                units.write(w, place, value, last if masked and v == shape.vectors - 1 else None)
        with unfinished:
            for i, value in enumerate(sums):
                w.b.store(value, unit_at(w, scratch, i * units.lanes), align=4)
    w.b.ret_void()
    return function


def _initial_sums(
    w: FunctionBuilder, units: Units, count: int, scratch: ir.Value, keep: ir.Value
) -> list[ir.Value]:
    """Sums of the previous call, or zeros."""
    before, kind = w.b.block, units.sums.type
    with w.b.if_then(w.b.icmp_signed("!=", keep, integer(0))):
        places = [unit_at(w, scratch, i * units.lanes) for i in range(count)]
        old = [w.b.load(place, typ=kind, align=4) for place in places]
        after = w.b.block
    found = []
    for value in old:
        phi = w.b.phi(kind)
        phi.add_incoming(units.sums.zero, before)
        phi.add_incoming(value, after)
        found.append(phi)
    return found


@dataclass(frozen=True, eq=False)
class _Walk:
    """Loops of a tile; ``last``: number of lanes in the last vector, if not all."""

    w: FunctionBuilder
    units: Units
    shape: Tile
    config: UnitTileConfig
    last: ir.Value | None

    def write(self, operands: Sequence[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
        """Return the sums over all k."""
        packed = self.config.packed and not self.config.fresh
        return (self._sum_rows if packed else self._sum_entries)(operands, sums)

    def _sum_rows(self, operands: Sequence[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
        """Return the sums over all rows of units, for packed operands."""
        w = self.w
        ahead, rows, a, a_pitch, b, *_ = operands
        if not self.config.a_rows_adjacent:
            floats = copy(w)
            floats.lanes = self.units.sums
            b_pitch = integer(self.shape.vectors * self.units.lanes)

            def load(pointer: ir.Value, vector: int) -> ir.Value:
                return floats.load(pointer)

            terms = TermSum(floats, self.shape, TileConfig(False), load, (a_pitch, b_pitch, integer(0)))
            return terms.write(a, b, rows, integer(0), sums)
        with loop(w, rows, b, a, ahead, *sums) as turn:
            here, row_units, later, *rest = turn.values
            w.prefetch_l2(later)
            places = [unit_at(w, row_units, row) for row in range(self.shape.rows)]
            rest = self._add_products(
                rest, self._row(here, here), lambda row: self.units.broadcast(w, places[row])
            )
            turn.next = [self._next_row(here), unit_at(w, row_units, a_pitch)]
            turn.next += [unit_at(w, later, self.shape.rows), *rest]
        return turn.values[3:]

    def _sum_entries(self, operands: Sequence[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
        """Return the sums over entries and the k of each; two k per iteration if they are adjacent in A."""
        w, config = self.w, self.config
        entries, count, a, a_pitch, b, source, pitch = operands
        steps = [w.b.mul(a_pitch, integer(i)) for i in range(GROUP)]
        with loop(w, count, a, b, *sums) as entry:
            begin, here, *rest = entry.values
            record = ENTRY.record(w, entries, entry.index)
            k = w.field(record, ENTRY["k"])
            groups = [begin if config.packed else w.element_pointer(a, w.field(record, ENTRY["a"]))]
            if not config.a_rows_adjacent:
                for _ in range(GROUP, self.shape.rows, GROUP):
                    groups.append(self._after(groups[-1], w.b.mul(a_pitch, integer(GROUP))))
            if not config.a_rows_adjacent and not config.packed:
                ahead = w.field(record, ENTRY["ahead"])
                with loop(w, k, step=_NUMBERS_A_LINE) as line:
                    for row in range(self.shape.rows):
                        w.prefetch_l1(
                            w.element_pointer(
                                w.element_pointer(_scratch_slot(w, groups, steps, row), ahead), line.index
                            )
                        )
            together = 1 if config.a_rows_adjacent or config.packed else 2
            first = w.element_pointer(source, w.field(record, ENTRY["b"]))
            with loop(w, w.b.sdiv(k, integer(together)), first, here, *groups, *rest) as turn:
                there, here, *rest = turn.values
                now, rest = rest[: len(groups)], rest[len(groups) :]
                for number in range(-(-together // self.units.k)):
                    if number:  # else LLVM reads both k at once, and there are too few registers
                        w.b.fence("acquire", "singlethread")
                    factors = self._factors(now, steps, number)
                    rest = self._add_products(rest, self._row(here, there), factors)
                    there, here = w.element_pointer(there, pitch), self._next_row(here)
                further = a_pitch if config.a_rows_adjacent else together
                turn.next = [there, here, *(self._after(p, further) for p in now), *rest]
            there, here, *rest = turn.values
            now, rest = rest[: len(groups)], rest[len(groups) :]
            if together > 1:
                here, *rest = self._add_odd_k(
                    k,
                    (there, here, rest),
                    lambda row: self.units.broadcast_first(w, _scratch_slot(w, now, steps, row)),
                )
            entry.next = [now[0], here, *rest]
        return entry.values[2:]

    def _factors(
        self, groups: list[ir.Value], steps: list[ir.Value], number: int
    ) -> Callable[[int], ir.Value]:
        """Factors of a row of B, by the row of A: of the first or the second k of an iteration."""
        w, units, first = self.w, self.units, groups[0]

        def of_row(row: int) -> ir.Value:
            if self.config.packed:
                adjacent = self.config.a_rows_adjacent
                return units.broadcast(
                    w,
                    unit_at(w, first, row)
                    if adjacent
                    else unit_at(w, groups[row // GROUP], steps[row % GROUP]),
                )
            if not self.config.a_rows_adjacent:
                return units.broadcast_of_two(w, _scratch_slot(w, groups, steps, row), number)
            if row | 1 < self.shape.rows:
                return units.broadcast_of_two(w, w.element_pointer(first, row & ~1), row & 1)
            return units.broadcast_first(w, w.element_pointer(first, row))

        return of_row

    def _add_odd_k(
        self,
        k: ir.Value,
        before: tuple[ir.Value, ir.Value, list[ir.Value]],
        factors: Callable[[int], ir.Value],
    ) -> list[ir.Value]:
        """Packed B and sums after the last k of an odd number."""
        w, block = self.w, self.w.b.block
        there, here, sums = before
        with w.b.if_then(w.b.icmp_signed("!=", w.b.and_(k, integer(1)), integer(0))):
            added = self._add_products(sums, self._row(here, there), factors)
            odd, after = [self._next_row(here), *added], w.b.block
        found = []
        for value, other in zip([here, *sums], odd, strict=True):
            phi = w.b.phi(value.type)
            phi.add_incoming(value, block)
            phi.add_incoming(other, after)
            found.append(phi)
        return found

    def _after(self, pointer: ir.Value, count: ir.Value | int) -> ir.Value:
        """Address in A ``count`` units (packed) or elements later."""
        return (unit_at if self.config.packed else FunctionBuilder.element_pointer)(self.w, pointer, count)

    def _next_row(self, here: ir.Value) -> ir.Value:
        """Next row of packed B."""
        return unit_at(self.w, here, self.shape.vectors * self.units.lanes)

    def _row(self, here: ir.Value, there: ir.Value) -> list[ir.Value]:
        """Load a row of packed B, or a row of B in place, which is packed."""
        w, units, found = self.w, self.units, []
        for v in range(self.shape.vectors):
            packed = unit_at(w, here, v * units.lanes)
            if not self.config.fresh:
                found.append(units.read(w, packed))
                continue
            count = self.last if v == self.shape.vectors - 1 else None
            found.append(units.unit(w, units.load(w, w.element_pointer(there, v * units.lanes), count)))
            w.b.store(found[-1], packed, align=4)
        return found

    def _add_products(
        self, sums: list[ir.Value], row: list[ir.Value], factor: Callable[[int], ir.Value]
    ) -> list[ir.Value]:
        """Add the products of a row of B with the factors of all rows of A to the sums."""
        found = list(sums)
        for i in range(self.shape.rows):
            one = factor(i)
            for v, value in enumerate(row):
                place = i * self.shape.vectors + v
                found[place] = self.units.add_products(self.w, found[place], one, value)
        return found


def _scratch_slot(w: FunctionBuilder, groups: list[ir.Value], steps: list[ir.Value], row: int) -> ir.Value:
    return w.element_pointer(groups[row // GROUP], steps[row % GROUP])
