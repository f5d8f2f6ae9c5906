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
from enum import IntEnum

from llvmlite import ir

from cotswold.kernels.compile.emit import (
    I1,
    I32,
    I64,
    POINTER,
    FunctionBuilder,
    Lanes,
    declare,
    integer,
    loop,
)
from cotswold.kernels.maps.tasks import JobHead, max_int, tasks
from cotswold.kernels.warp.pictures import FAR, GOLDEN, MIXERS, PaddingMode

TOGETHER = 4
"""Rows of each part of a field smoothed at a time."""
BEYOND = TOGETHER - 1
"""Rows of zeros above and below a part."""


class WarpJob(IntEnum):
    """Fields of a job, after those of every job."""

    VALUES = JobHead.FIELDS
    OUTPUT = 6
    MAPS = 7
    SLOPES = 8
    KEYS = 9
    TAPS = 10
    """Address of the tap of the pixel itself."""
    STREAM = 11
    """Value that the stream adds to the hashed number."""
    CHANNELS = 12
    HEIGHT = 13
    WIDTH = 14
    ACROSS = 15
    """Taps on either side along x."""
    DOWN = 16
    """Taps on either side along y."""
    FIELDS = 17


@dataclass(frozen=True)
class Planes:
    """Layout of a field in scratch, in elements; all but heights are whole vectors."""

    body: int
    """Elements of a row."""
    margin: int
    """Zeros before and after a row."""
    rows: int
    """Height, in whole groups of rows."""
    height: int

    @classmethod
    def of(cls, lanes: int, height: int, width: int, across: int) -> Planes:
        """Return the layout for an image whose rows are smoothed with ``across`` neighbours per side."""
        return cls(
            -(-width // lanes) * lanes, -(-across // lanes) * lanes, -(-height // TOGETHER) * TOGETHER, height
        )

    @property
    def size(self) -> int:
        """Total elements."""
        return 2 * (self.rows * (self.body + 2 * self.margin) + (self.height + 2 * BEYOND) * self.body)


def write_warp(fill: PaddingMode, has_field: bool, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is an image."""
    module = ir.Module(f"warp_{fill}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        field = _Field(w, job, number, scratch) if has_field else None
        if field is not None:
            field.write()
        _Sampling(w, job, number, fill, field).write()
    return module


class _Field:
    """Code generator of the field of an image.

    The field is drawn with margins left and right, smoothed along x into rows with zeros above and below,
    then smoothed along y back to the place where it was drawn.
    """

    def __init__(self, w: FunctionBuilder, job: ir.Value, number: ir.Value, scratch: ir.Value) -> None:
        b, count = w.b, w.lanes.count
        self.w, self.job, self.number = w, job, number
        self.height, self.width = w.field(job, WarpJob.HEIGHT), w.field(job, WarpJob.WIDTH)
        self.across, self.down = w.field(job, WarpJob.ACROSS), w.field(job, WarpJob.DOWN)
        self.taps = w.pointer_field(job, WarpJob.TAPS)
        self.body, self.margin = _whole(w, self.width, count), _whole(w, self.across, count)
        self.rows = _whole(w, self.height, TOGETHER)
        self.pitch = b.add(self.body, b.add(self.margin, self.margin))
        self.part = b.mul(self.rows, self.pitch)
        self.smooth_part = b.mul(b.add(self.height, integer(2 * BEYOND)), self.body)
        self.drawn = scratch
        self.smooth = w.at(scratch, b.add(self.part, self.part))

    def write(self) -> None:
        """Generate the whole field."""
        self._clear()
        for part in (0, 1):
            self._draw(part)
        self._smooth_rows()
        self._smooth_columns()

    def at(self, part: int, y: ir.Value) -> ir.Value:
        """Address of a row of the finished field."""
        return self.w.at(self._part(self.drawn, part, self.part), self.w.b.mul(y, self.pitch))

    def _part(self, plane: ir.Value, part: int, size: ir.Value) -> ir.Value:
        return self.w.at(plane, self.w.b.mul(integer(part), size))

    def _clear(self) -> None:
        w, b = self.w, self.w.b
        one = b.add(self.part, self.smooth_part)
        with loop(w, b.add(one, one), step=w.lanes.count) as turn:
            w.store(w.at(self.drawn, turn.index), w.lanes.zero)

    def _draw(self, part: int) -> None:
        """Draw numbers in -1 to 1."""
        w, b, words = self.w, self.w.b, _Words(self.w)
        key = w.field(w.pointer_field(self.job, WarpJob.KEYS), self.number)
        low, high = words.splat(key), words.splat(b.lshr(key, integer(32)))
        stream = words.splat(w.field(self.job, WarpJob.STREAM))
        plane = w.at(self._part(self.drawn, part, self.part), self.margin)
        begin = b.mul(integer(part), b.mul(self.height, self.width))
        with loop(w, self.height) as row:
            places, first = w.at(plane, b.mul(row.index, self.pitch)), b.mul(row.index, self.width)
            with loop(w, self.width, step=w.lanes.count) as turn:
                place = words.numbered(b.add(b.add(begin, first), turn.index))
                state = b.add(b.mul(place, words.constant(GOLDEN)), stream)
                state = words.mixed(b.add(words.mixed(b.xor(state, low)), high))
                unit = b.fmul(
                    b.sitofp(b.lshr(state, words.constant(8)), w.lanes.type), w.lanes.constant(2.0**-24)
                )
                drawn = b.fadd(w.lanes.constant(-1.0), b.fmul(w.lanes.constant(2.0), unit))
                inside = w.lane_mask(b.sub(self.width, turn.index))
                w.store(w.at(places, turn.index), b.select(inside, drawn, w.lanes.zero))

    def _smooth_rows(self) -> None:
        w, b = self.w, self.w.b
        taps = b.add(b.add(self.across, self.across), integer(1))
        first = b.sub(integer(0), self.across)
        with loop(w, self.rows, step=TOGETHER) as row, loop(w, self.body, step=w.lanes.count) as turn:
            sources, targets = [], []
            for part in (0, 1):
                source = w.at(self._part(self.drawn, part, self.part), b.add(self.margin, turn.index))
                target = w.at(self._part(self.smooth, part, self.smooth_part), turn.index)
                for one in range(TOGETHER):
                    y = b.add(row.index, integer(one))
                    sources.append(w.at(source, b.mul(y, self.pitch)))
                    targets.append(w.at(target, b.mul(b.add(y, integer(BEYOND)), self.body)))
            for target, value in zip(targets, self._summed(first, taps, sources, integer(1)), strict=True):
                w.store(target, value)

    def _smooth_columns(self) -> None:
        w, b = self.w, self.w.b
        with loop(w, self.height, step=TOGETHER) as row:
            above = b.add(row.index, integer(BEYOND))
            first = b.sub(integer(0), w.min_int(self.down, above))
            last = w.min_int(self.down, b.sub(b.sub(self.height, integer(1)), row.index))
            taps = b.add(b.sub(last, first), integer(1))
            with loop(w, self.body, step=w.lanes.count) as turn:
                sources, targets = [], []
                for part in (0, 1):
                    source = w.at(self._part(self.smooth, part, self.smooth_part), turn.index)
                    for one in range(TOGETHER):
                        y = b.add(row.index, integer(one))
                        sources.append(w.at(source, b.mul(b.add(y, integer(BEYOND)), self.body)))
                        targets.append(w.at(self.at(part, y), turn.index))
                for target, value in zip(targets, self._summed(first, taps, sources, self.body), strict=True):
                    w.store(target, value)

    def _summed(
        self, first: ir.Value, taps: ir.Value, sources: Sequence[ir.Value], stride: ir.Value
    ) -> list[ir.Value]:
        """Weighted sums of neighbours, with taps from ``first`` on, for each source."""
        w, b = self.w, self.w.b
        place = b.mul(first, stride)
        tap = w.at(self.taps, first)
        begun = [w.at(source, place) for source in sources]
        with loop(w, taps, integer(0), *[w.lanes.zero] * len(sources)) as turn:
            offset, *totals = turn.values
            weight = w.load_broadcast(w.at(tap, turn.index))
            turn.next = [b.add(offset, stride)]
            for source, total in zip(begun, totals, strict=True):
                turn.next.append(b.fadd(total, b.fmul(weight, w.load(w.at(source, offset)))))
        return turn.values[1:]


class _Sampling:
    """Interpolated values of an image at the positions that its map and its field give."""

    def __init__(
        self, w: FunctionBuilder, job: ir.Value, number: ir.Value, fill: PaddingMode, field: _Field | None
    ) -> None:
        b = w.b
        self.w, self.fill, self.field, self.words = w, fill, field, _Words(w)
        self.height, self.width = w.field(job, WarpJob.HEIGHT), w.field(job, WarpJob.WIDTH)
        self.channels, self.plane = w.field(job, WarpJob.CHANNELS), b.mul(self.height, self.width)
        begin = b.mul(number, b.mul(self.channels, self.plane))
        self.values, self.found = (
            w.at(w.pointer_field(job, one), begin) for one in (WarpJob.VALUES, WarpJob.OUTPUT)
        )
        maps = w.at(w.pointer_field(job, WarpJob.MAPS), b.mul(number, integer(6)))
        self.maps = [[w.load_broadcast(w.at(maps, 3 * axis + one)) for one in range(3)] for axis in (0, 1)]
        self.slopes: list[list[ir.Value]] = []
        if field is not None:
            slopes = w.at(w.pointer_field(job, WarpJob.SLOPES), b.mul(number, integer(4)))
            self.slopes = [
                [w.load_broadcast(w.at(slopes, 2 * axis + one)) for one in (0, 1)] for axis in (0, 1)
            ]
        half = w.lanes.constant(0.5)
        self.middles = [
            b.fmul(self.words.as_numbers(b.sub(size, integer(1))), half) for size in (self.height, self.width)
        ]
        self.shifts = [b.fadd(self.maps[axis][2], self.middles[axis]) for axis in (0, 1)]
        self.axes = [_Axis(w, size, fill) for size in (self.height, self.width)]
        self.pitch = self.words.splat(self.width)
        self.last_pair = self.words.splat(b.sub(self.width, integer(2)))

    def write(self) -> None:
        """Process all pixels in all channels."""
        w, b = self.w, self.w.b
        with loop(w, self.height) as row:
            y = b.fsub(self.words.as_numbers(row.index), self.middles[0])
            begun = [b.fmul(self.maps[axis][0], y) for axis in (0, 1)]
            fields = [] if self.field is None else [self.field.at(part, row.index) for part in (0, 1)]
            target = w.at(self.found, b.mul(row.index, self.width))
            with loop(w, self.width, step=w.lanes.count) as turn:
                numbers = b.sitofp(self.words.numbered(turn.index), w.lanes.type)
                x = b.fsub(numbers, self.middles[1])
                places = [
                    b.fadd(b.fadd(begun[axis], b.fmul(self.maps[axis][1], x)), self.shifts[axis])
                    for axis in (0, 1)
                ]
                if self.field is not None:
                    drawn = [w.load(w.at(one, turn.index)) for one in fields]
                    for axis, slopes in enumerate(self.slopes):
                        first, second = (b.fmul(a, c) for a, c in zip(slopes, drawn, strict=True))
                        places[axis] = b.fadd(places[axis], b.fadd(first, second))
                mask = w.lane_mask(b.sub(self.width, turn.index))
                self._sample(places, w.at(target, turn.index), mask)

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
                if row.there is not None and column.there is not None:
                    share = b.select(b.and_(row.there, column.there), share, w.lanes.zero)
                shares.append(share)
        with loop(w, self.channels, integer(0)) as turn:
            begin = turn.values[0]
            source, total = w.at(self.values, begin), w.lanes.zero
            corners = [
                b.select(is_second, both[1], both[0])
                for both in (_gathered(w, source, line) for line in lines)
                for is_second in are_second
            ]
            for share, corner in zip(shares, corners, strict=True):
                total = b.fadd(total, b.fmul(share, corner))
            w.masked_store(w.at(target, begin), total, mask)
            turn.next = [b.add(begin, self.plane)]

    def _pair(self, columns: Sequence[ir.Value]) -> tuple[ir.Value, list[ir.Value]]:
        """First of two adjacent columns that contain both columns, and masks of the lanes at the second."""
        b, (first, second) = self.w.b, columns
        found = b.select(b.icmp_signed("<", first, second), first, second)
        found = b.select(b.icmp_signed("<", found, self.last_pair), found, self.last_pair)
        return found, [b.icmp_signed(">", one, found) for one in columns]


@dataclass(frozen=True, eq=False)
class _Neighbour:
    """One of the two pixels around a position along an axis; ``there``: mask of pixels inside, if needed."""

    share: ir.Value
    index: ir.Value
    there: ir.Value | None


class _Axis:
    """Conversion of positions along an axis to pixels."""

    def __init__(self, w: FunctionBuilder, size: ir.Value, fill: PaddingMode) -> None:
        b = w.b
        self.w, self.fill, self.words = w, fill, _Words(w)
        self.size = self.words.splat(size)
        self.last = self.words.splat(b.sub(size, integer(1)))
        if fill == "reflect":
            period = max_int(w, b.sub(b.add(size, size), integer(2)), integer(1))
            self.period = self.words.as_numbers(period)
            self.frequency = b.fdiv(w.lanes.constant(1.0), self.period)
            self.least, self.most = w.lanes.constant(-FAR), w.lanes.constant(FAR)
        else:
            self.least, self.most = w.lanes.constant(-2.0), self.words.as_numbers(b.add(size, integer(1)))

    def split(self, place: ir.Value) -> list[_Neighbour]:
        """Return the pixel at or before a position, and the next one."""
        w, b = self.w, self.w.b
        low = _floor(w, place)
        part = b.fsub(place, low)
        shares = (b.fsub(w.lanes.constant(1.0), part), part)
        # NaN becomes a bound, too: no index is ever outside
        bounded = b.select(b.fcmp_ordered(">", low, self.least), low, self.least)
        bounded = b.select(b.fcmp_ordered("<", bounded, self.most), bounded, self.most)
        if self.fill == "reflect":
            next_ = b.fadd(bounded, w.lanes.constant(1.0))
            return [
                _Neighbour(share, self._mirrored(one), None)
                for share, one in zip(shares, (bounded, next_), strict=True)
            ]
        first = b.fptosi(bounded, self.words.type)
        return [
            self._clipped(share, one)
            for share, one in zip(shares, (first, b.add(first, self.words.constant(1))), strict=True)
        ]

    def _clipped(self, share: ir.Value, at: ir.Value) -> _Neighbour:
        b, none = self.w.b, self.words.constant(0)
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
        rest = b.fsub(far, b.fmul(_floor(w, b.fmul(far, self.frequency)), self.period))
        rest = b.select(b.fcmp_ordered("<", rest, none), b.fadd(rest, self.period), rest)
        rest = b.select(b.fcmp_ordered(">=", rest, self.period), b.fsub(rest, self.period), rest)
        return b.fptosi(w.minimum(rest, b.fsub(self.period, rest)), self.words.type)


class _Words:
    """Vectors of 32-bit integers."""

    def __init__(self, w: FunctionBuilder) -> None:
        self.w, self.type = w, ir.VectorType(I32, w.lanes.count)

    def constant(self, value: int) -> ir.Constant:
        """Return a vector of one value, modulo 2^32."""
        return ir.Constant(self.type, [(value + (1 << 31)) % (1 << 32) - (1 << 31)] * self.w.lanes.count)

    def splat(self, value: ir.Value) -> ir.Value:
        """Broadcast the lower half of a 64-bit integer."""
        return self.w.splat(self.w.b.trunc(value, I32))

    def numbered(self, first: ir.Value) -> ir.Value:
        """Return consecutive integers from ``first``."""
        return self.w.b.add(self.splat(first), ir.Constant(self.type, list(range(self.w.lanes.count))))

    def as_numbers(self, value: ir.Value) -> ir.Value:
        """Convert a 64-bit integer to a float in every lane."""
        return self.w.splat(self.w.b.sitofp(value, self.w.lanes.scalar))

    def mixed(self, state: ir.Value) -> ir.Value:
        """Apply the hash of `MIXERS`."""
        b, first, second = self.w.b, *map(self.constant, MIXERS)
        state = b.mul(b.xor(state, b.lshr(state, self.constant(16))), first)
        state = b.mul(b.xor(state, b.lshr(state, self.constant(13))), second)
        return b.xor(state, b.lshr(state, self.constant(16)))


def _whole(w: FunctionBuilder, size: ir.Value, step: int) -> ir.Value:
    """Return the least multiple of ``step`` that is at least ``size``."""
    b = w.b
    return b.mul(b.sdiv(b.add(size, integer(step - 1)), integer(step)), integer(step))


def _floor(w: FunctionBuilder, value: ir.Value) -> ir.Value:
    name = f"llvm.floor.v{w.lanes.count}f32"
    return w.b.call(declare(w.function.module, name, w.lanes.type, [w.lanes.type]), [value])


def _gathered(w: FunctionBuilder, base: ir.Value, indices: ir.Value) -> list[ir.Value]:
    """Gather the elements at these indices, and those after them: each pair is one load."""
    count = w.lanes.count
    pairs, pointers, mask = (ir.VectorType(one, count) for one in (I64, POINTER, I1))
    places = w.b.gep(base, [indices], source_etype=w.lanes.scalar)
    places.type = pointers  # llvmlite takes the type of the base
    gather = declare(
        w.function.module,
        f"llvm.masked.gather.v{count}i64.v{count}p0",
        pairs,
        [pointers, I32, mask, pairs],
    )
    every, none = ir.Constant(mask, [1] * count), ir.Constant(pairs, [0] * count)
    both = w.b.call(gather, [places, ir.Constant(I32, 4), every, none])
    both = w.b.bitcast(both, ir.VectorType(w.lanes.scalar, 2 * count))
    return [w.shuffle(both, both, range(one, 2 * count, 2)) for one in (0, 1)]
