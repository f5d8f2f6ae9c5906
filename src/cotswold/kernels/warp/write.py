"""Kernels of image warps: a smooth random field, and interpolation between pixels.

Knows: formulas in vectors along x, the layout of an image's field in scratch. Does not know: arrays, the
kinds of warps.

A task is an image. Its field is drawn by a hash of key and place, and smoothed along x, then along y, four
rows of both of its parts at a time: eight independent sums. Margins of zeros stand for places beyond the
edge, so that no sum needs a bounds check. Then each vector of pixels computes its source positions once and
gathers four neighbours in each channel, two at a time: the two of a row are adjacent or the same pixel, for
any padding. So a row must have at least two pixels.

Multiplications and additions are not fused and have the order of the NumPy code of `data.augment.warp`: the
bits are the same, with any vectors. Terms that are 0 change no bit, because a sum that starts at +0 is never
-0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import max_int, tasks
from cotswold.kernels.warp.field import FieldGenerator
from cotswold.kernels.warp.images import MAX_DISTANCE, PaddingMode
from cotswold.kernels.warp.job import JOB
from cotswold.kernels.warp.vectors import I32Vectors, floor, gather_pairs


def write_warp(fill: PaddingMode, has_field: bool, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is an image."""
    module = ir.Module(f"warp_{fill}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        field = FieldGenerator(w, job, number, scratch) if has_field else None
        if field is not None:
            field.write()
        _Sampling(w, job, number, fill, field).write()
    return module


class _Sampling:
    """Interpolated values of an image at the positions that its map and its field give."""

    def __init__(
        self,
        w: FunctionBuilder,
        job: ir.Value,
        number: ir.Value,
        fill: PaddingMode,
        field: FieldGenerator | None,
    ) -> None:
        b = w.b
        self.w, self.fill, self.field, self.integers = w, fill, field, I32Vectors(w)
        self.height, self.width = w.field(job, JOB["height"]), w.field(job, JOB["width"])
        self.channels, self.plane = w.field(job, JOB["channels"]), b.mul(self.height, self.width)
        begin = b.mul(number, b.mul(self.channels, self.plane))
        self.values, self.output = (
            w.element_pointer(w.pointer_field(job, one), begin) for one in (JOB["values"], JOB["output"])
        )
        maps = w.element_pointer(w.pointer_field(job, JOB["maps"]), b.mul(number, integer(6)))
        self.maps = [
            [w.load_broadcast(w.element_pointer(maps, 3 * axis + one)) for one in range(3)] for axis in (0, 1)
        ]
        self.slopes: list[list[ir.Value]] = []
        if field is not None:
            slopes = w.element_pointer(w.pointer_field(job, JOB["slopes"]), b.mul(number, integer(4)))
            self.slopes = [
                [w.load_broadcast(w.element_pointer(slopes, 2 * axis + one)) for one in (0, 1)]
                for axis in (0, 1)
            ]
        half = w.lanes.constant(0.5)
        self.middles = [
            b.fmul(self.integers.as_numbers(b.sub(size, integer(1))), half)
            for size in (self.height, self.width)
        ]
        self.shifts = [b.fadd(self.maps[axis][2], self.middles[axis]) for axis in (0, 1)]
        self.axes = [_Axis(w, size, fill) for size in (self.height, self.width)]
        self.pitch = self.integers.splat(self.width)
        self.last_pair = self.integers.splat(b.sub(self.width, integer(2)))

    def write(self) -> None:
        """Process all pixels in all channels."""
        w, b = self.w, self.w.b
        with loop(w, self.height) as row:
            y = b.fsub(self.integers.as_numbers(row.index), self.middles[0])
            begun = [b.fmul(self.maps[axis][0], y) for axis in (0, 1)]
            fields = (
                [] if self.field is None else [self.field.row_address(part, row.index) for part in (0, 1)]
            )
            target = w.element_pointer(self.output, b.mul(row.index, self.width))
            with loop(w, self.width, step=w.lanes.count) as turn:
                numbers = b.sitofp(self.integers.numbered(turn.index), w.lanes.type)
                x = b.fsub(numbers, self.middles[1])
                places = [
                    b.fadd(b.fadd(begun[axis], b.fmul(self.maps[axis][1], x)), self.shifts[axis])
                    for axis in (0, 1)
                ]
                if self.field is not None:
                    drawn = [w.load(w.element_pointer(one, turn.index)) for one in fields]
                    for axis, slopes in enumerate(self.slopes):
                        first, second = (b.fmul(a, c) for a, c in zip(slopes, drawn, strict=True))
                        places[axis] = b.fadd(places[axis], b.fadd(first, second))
                mask = w.lane_mask(b.sub(self.width, turn.index))
                self._sample(places, w.element_pointer(target, turn.index), mask)

    def _sample(self, places: Sequence[ir.Value], target: ir.Value, mask: ir.Value) -> None:
        """Process a vector of pixels in all channels."""
        w, b = self.w, self.w.b
        rows, columns = (axis.split(place) for axis, place in zip(self.axes, places, strict=True))
        pair, are_second = self._pair([one.index for one in columns])
        lines = [b.add(b.mul(row.index, self.pitch), pair) for row in rows]
        shares = []
        for row in rows:
            for column in columns:
                share = b.fmul(row.share, column.share)
                if row.mask is not None and column.mask is not None:
                    share = b.select(b.and_(row.mask, column.mask), share, w.lanes.zero)
                shares.append(share)
        with loop(w, self.channels, integer(0)) as turn:
            begin = turn.values[0]
            source, total = w.element_pointer(self.values, begin), w.lanes.zero
            corners = [
                b.select(is_second, both[1], both[0])
                for both in (gather_pairs(w, source, line) for line in lines)
                for is_second in are_second
            ]
            for share, corner in zip(shares, corners, strict=True):
                total = b.fadd(total, b.fmul(share, corner))
            w.masked_store(w.element_pointer(target, begin), total, mask)
            turn.next = [b.add(begin, self.plane)]

    def _pair(self, columns: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        """First of two adjacent columns that contain both columns, and masks of the lanes at the second."""
        b, (first, second) = self.w.b, columns
        found = b.select(b.icmp_signed("<", first, second), first, second)
        found = b.select(b.icmp_signed("<", found, self.last_pair), found, self.last_pair)
        return found, [b.icmp_signed(">", one, found) for one in columns]


@dataclass(frozen=True, eq=False)
class _Neighbour:
    """One of the two pixels around a position along an axis; ``mask``: mask of pixels inside, if needed."""

    share: ir.Value
    index: ir.Value
    mask: ir.Value | None


class _Axis:
    """Conversion of positions along an axis to pixels."""

    def __init__(self, w: FunctionBuilder, size: ir.Value, fill: PaddingMode) -> None:
        b = w.b
        self.w, self.fill, self.integers = w, fill, I32Vectors(w)
        self.size = self.integers.splat(size)
        self.last = self.integers.splat(b.sub(size, integer(1)))
        if fill == "reflect":
            period = max_int(w, b.sub(b.add(size, size), integer(2)), integer(1))
            self.period = self.integers.as_numbers(period)
            self.frequency = b.fdiv(w.lanes.constant(1.0), self.period)
            self.minimum, self.maximum = w.lanes.constant(-MAX_DISTANCE), w.lanes.constant(MAX_DISTANCE)
        else:
            self.minimum, self.maximum = (
                w.lanes.constant(-2.0),
                self.integers.as_numbers(b.add(size, integer(1))),
            )

    def split(self, place: ir.Value) -> list[_Neighbour]:
        """Return the pixel at or before a position, and the next one."""
        w, b = self.w, self.w.b
        low = floor(w, place)
        part = b.fsub(place, low)
        shares = (b.fsub(w.lanes.constant(1.0), part), part)
        # NaN becomes a bound, too: no index is ever outside
        bounded = b.select(b.fcmp_ordered(">", low, self.minimum), low, self.minimum)
        bounded = b.select(b.fcmp_ordered("<", bounded, self.maximum), bounded, self.maximum)
        if self.fill == "reflect":
            next_ = b.fadd(bounded, w.lanes.constant(1.0))
            return [
                _Neighbour(share, self._mirrored(one), None)
                for share, one in zip(shares, (bounded, next_), strict=True)
            ]
        first = b.fptosi(bounded, self.integers.type)
        return [
            self._clipped(share, one)
            for share, one in zip(shares, (first, b.add(first, self.integers.constant(1))), strict=True)
        ]

    def _clipped(self, share: ir.Value, at: ir.Value) -> _Neighbour:
        b, none = self.w.b, self.integers.constant(0)
        there = None
        if self.fill == "zero":
            there = b.icmp_unsigned("<", at, self.size)
        index = b.select(b.icmp_signed(">", at, none), at, none)
        index = b.select(b.icmp_signed("<", index, self.last), index, self.last)
        return _Neighbour(share, index, there)

    def _mirrored(self, at: ir.Value) -> ir.Value:
        """Mirror an integer below 2^24: only the quotient is rounded, and may be off by one."""
        w, b, none = self.w, self.w.b, self.w.lanes.zero
        far = w.fabs(at)
        rest = b.fsub(far, b.fmul(floor(w, b.fmul(far, self.frequency)), self.period))
        rest = b.select(b.fcmp_ordered("<", rest, none), b.fadd(rest, self.period), rest)
        rest = b.select(b.fcmp_ordered(">=", rest, self.period), b.fsub(rest, self.period), rest)
        return b.fptosi(w.minimum(rest, b.fsub(self.period, rest)), self.integers.type)
