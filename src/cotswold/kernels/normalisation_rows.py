"""The kernels of contrast normalisation, row by row of the map, all channels of some images at a time.

Knows: the order of the sums, rings of rows in scratch. Does not know: Gaussians, tensors, autograd.

Every step needs some rows of the step before it, which are made when they are first asked for and kept in a
ring; the map itself is read from memory once and then from the second cache. In the names of Le et al. 2012:

    forward: sums of h over channels -> their mean m -> power of g = h - m -> its mean p -> y = g / sqrt(p)
    backward: slope of p -> spread over its window -> slope of g, summed over channels -> spread -> slope of h

Lanes are images. A mean over a window is a *band*: for every output along an axis so many weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from llvmlite import ir

from cotswold.kernels.emit import Lanes, Writer, integer, loop
from cotswold.kernels.map_tasks import Head, Strip, most, number_field, root, strips, tasks, upto

VECTORS = 2
"""Vectors that are worked on at a time."""
GROUP = 16
"""Channels that are summed one after the other before their sum is added; part of the result, to the bit."""


class Row(IntEnum):
    """The fields of a job, after those of every job. ``BANDS``: y and x of the first mean, of the second."""

    IMAGES = Head.FIELDS
    CHANNELS = 6
    BLOCKS = 7
    BLOCK = 8
    PARTS = 9
    PART_ROWS = 10
    HEIGHT = 11
    WIDTH = 12
    MEAN_HEIGHT = 13
    MEAN_WIDTH = 14
    POWER_HEIGHT = 15
    POWER_WIDTH = 16
    SIZE = 17
    LOW = 18
    CROP = 19
    RING = 20
    FLOOR = 21
    BANDS = 22
    MAP = 26
    GRAD = 30
    MEAN = 34
    POWER = 38
    OUTPUT = 42
    FIELDS = 46


@dataclass(frozen=True)
class Kind:
    """``normalise`` makes y; ``measure`` makes m and p alone; ``gradient`` makes the slope of h from them."""

    name: str


NORMALISE, MEASURE, GRADIENT = Kind("normalise"), Kind("measure"), Kind("gradient")


def scratch_elements(block: int, ring: int, width: int) -> int:
    """Numbers of scratch a thread: zeros, four rings of rows, two rows."""
    return block + (4 * ring + 2) * width * block


def write_rows(kind: Kind, lanes: Lanes, triple: str) -> ir.Module:
    """A module with ``work(job)``: tasks of a block of images and some rows each, until none is left."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        b = w.b
        parts = w.field(job, Row.PARTS)
        lane = b.mul(b.udiv(number, parts), w.field(job, Row.BLOCK))
        rows = w.field(job, Row.PART_ROWS)
        first = b.mul(b.urem(number, parts), rows)
        height = w.field(job, Row.HEIGHT if kind is GRADIENT else Row.POWER_HEIGHT)
        stop = w.least(b.add(first, rows), height)
        block = _Block(w, job, scratch, lane)
        if kind is GRADIENT:
            block.write_gradient(first, stop)
        else:
            block.write_forward(first, stop, kind)
    return module


class _Map:
    """A map of a job: where a block of images begins, its pitches."""

    def __init__(self, w: Writer, job: ir.Value, field: int, lane: ir.Value) -> None:
        self.w = w
        self.row, self.column, self.channel = (w.field(job, field + i) for i in (1, 2, 3))
        self.base = w.at(w.pointer_field(job, field), lane)

    def at(self, y: ir.Value, x: ir.Value) -> ir.Value:
        """The address of a place."""
        return self.w.at(self.base, self.w.b.add(self.w.b.mul(y, self.row), self.w.b.mul(x, self.column)))


class _Ring:
    """Rows of a map of one channel in scratch, the latest few; a ring of one row is a row."""

    def __init__(self, w: Writer, base: ir.Value, mask: ir.Value, row: ir.Value, block: ir.Value) -> None:
        self.w, self.base, self.mask, self.row, self.block = w, base, mask, row, block

    def at(self, y: ir.Value, x: ir.Value) -> ir.Value:
        """The address of a place."""
        b = self.w.b
        return self.w.at(self.base, b.add(b.mul(b.and_(y, self.mask), self.row), b.mul(x, self.block)))


Chain = Callable[[list[ir.Value], list[ir.Value]], list[ir.Value]]


class _Block:
    """The block of images that a task works on."""

    def __init__(self, w: Writer, job: ir.Value, scratch: ir.Value, lane: ir.Value) -> None:
        self.w, b = w, w.b
        self.height, self.width = w.field(job, Row.HEIGHT), w.field(job, Row.WIDTH)
        self.mean_height, self.mean_width = w.field(job, Row.MEAN_HEIGHT), w.field(job, Row.MEAN_WIDTH)
        self.power_height, self.power_width = w.field(job, Row.POWER_HEIGHT), w.field(job, Row.POWER_WIDTH)
        self.size, self.low, self.crop = (w.field(job, one) for one in (Row.SIZE, Row.LOW, Row.CROP))
        self.channels, self.block = w.field(job, Row.CHANNELS), w.field(job, Row.BLOCK)
        self.lanes = w.least(self.block, b.sub(w.field(job, Row.IMAGES), lane))
        self.floor = number_field(w, job, Row.FLOOR)
        number = b.sitofp(self.channels, w.lanes.scalar)
        self.count = w.spread_value(number)
        self.bands = [w.pointer_field(job, Row.BANDS + i) for i in range(4)]
        self.map, self.grad = _Map(w, job, Row.MAP, lane), _Map(w, job, Row.GRAD, lane)
        self.mean, self.power = _Map(w, job, Row.MEAN, lane), _Map(w, job, Row.POWER, lane)
        self.output = _Map(w, job, Row.OUTPUT, lane)
        ring, row = w.field(job, Row.RING), b.mul(self.width, self.block)
        self.zeros = scratch
        with loop(w, self.block, step=w.lanes.count) as turn:
            w.write(w.at(scratch, turn.index), w.lanes.zero)
        place = w.at(scratch, self.block)
        found = []
        for _ in range(4):
            found.append(_Ring(w, place, b.sub(ring, integer(1)), row, self.block))
            place = w.at(place, b.mul(ring, row))
        self.rings = found
        self.row = _Ring(w, place, integer(0), row, self.block)
        self.passing = _Ring(w, w.at(place, row), integer(0), row, self.block)

    def write_forward(self, first: ir.Value, stop: ir.Value, kind: Kind) -> None:
        """Rows of the output, or of the power, from ``first`` to ``stop``."""
        w, b = self.w, self.w.b
        sums, means, powers, _ = self.rings
        start = self._start(first, self.low)
        with loop(w, b.sub(stop, first), start, self._start(start, self.low)) as turn:
            y = b.add(first, turn.index)
            power_stop = self._stop(y, self.low, self.mean_height)
            span = most(w, b.sub(power_stop, turn.values[0]), integer(0))
            with loop(w, span, turn.values[1]) as inner:
                row = b.add(turn.values[0], inner.index)
                sum_stop = self._stop(row, self.low, self.height)
                with upto(w, inner.values[0], sum_stop) as one:
                    self._write_sums(one, sums)
                inner.next = [most(w, inner.values[0], sum_stop)]
                self._smooth(
                    sums,
                    row,
                    (0, self.low),
                    (self.width, self.height),
                    self.mean_width,
                    means.at(row, integer(0)),
                )
                self._write_powers(row, means, powers)
                if kind is MEASURE:
                    self._export(means.at(row, integer(0)), self.mean, row, self.mean_width)
            turn.next = [most(w, turn.values[0], power_stop), inner.values[0]]
            self._smooth(
                powers, y, (2, self.low), (self.mean_width, self.mean_height), self.power_width, self.row.base
            )
            if kind is MEASURE:
                self._export(self.row.base, self.power, y, self.power_width)
            else:
                self._write_output(y, means)

    def write_gradient(self, first: ir.Value, stop: ir.Value) -> None:
        """Rows of the gradient by the map, from ``first`` to ``stop``; the bands are transposed."""
        w, b = self.w, self.w.b
        slopes, inverses, to_power, inner_sums = self.rings
        start = self._start(first, self.low)
        with loop(w, b.sub(stop, first), start, self._start(start, self.low)) as turn:
            y = b.add(first, turn.index)
            inner_stop = self._stop(y, self.low, self.mean_height)
            span = most(w, b.sub(inner_stop, turn.values[0]), integer(0))
            with loop(w, span, turn.values[1]) as inner:
                row = b.add(turn.values[0], inner.index)
                slope_stop = self._stop(row, self.low, self.power_height)
                with upto(w, inner.values[0], slope_stop) as one:
                    self._write_slopes(one, slopes, inverses)
                inner.next = [most(w, inner.values[0], slope_stop)]
                extents = (self.power_width, self.power_height)
                self._smooth(
                    slopes, row, (2, self.low), extents, self.mean_width, to_power.at(row, integer(0))
                )
                self._write_inner_sums(row, inverses, to_power, inner_sums)
            turn.next = [most(w, turn.values[0], inner_stop), inner.values[0]]
            extents = (self.mean_width, self.mean_height)
            self._smooth(inner_sums, y, (0, self.low), extents, self.width, self.row.base)
            self._write_gradient_row(y, inverses, to_power)

    def _start(self, y: ir.Value, low: ir.Value) -> ir.Value:
        return most(self.w, self.w.b.sub(y, low), integer(0))

    def _stop(self, y: ir.Value, low: ir.Value, extent: ir.Value) -> ir.Value:
        return self.w.least(self.w.b.add(self.w.b.sub(y, low), self.size), extent)

    def _smooth(
        self,
        rows: _Ring,
        y: ir.Value,
        band: tuple[int, ir.Value],
        extents: tuple[ir.Value, ir.Value],
        outputs: ir.Value,
        target: ir.Value,
    ) -> None:
        """A row of means over a window, down, then across, divided by the channels."""
        w, b = self.w, self.w.b
        (number, low), (width, height) = band, extents
        along_y, along_x = self.bands[number], self.bands[number + 1]
        top, down = b.sub(y, low), self._start(y, low)
        weights = w.at(along_y, b.mul(y, self.size))
        count = b.sub(self._stop(y, low, height), down)

        def passing(strip: Strip, lane: ir.Value) -> None:
            with loop(w, count, *strip.zeros()) as turn:
                row = b.add(down, turn.index)
                weight = w.spread(w.at(weights, b.sub(row, top)))
                turn.next = _products(
                    w, strip.recall(w.at(rows.at(row, integer(0)), lane)), weight, turn.values
                )
            strip.keep(w.at(self.passing.base, lane), turn.values)

        strips(w, 2 * VECTORS, b.mul(width, self.block), passing)
        with loop(w, outputs) as across:
            left, start = b.sub(across.index, low), self._start(across.index, low)
            factors = w.at(along_x, b.mul(across.index, self.size))
            span = b.sub(self._stop(across.index, low, width), start)
            to = w.at(target, b.mul(across.index, self.block))

            def body(strip: Strip, lane: ir.Value) -> None:
                with loop(w, span, *strip.zeros()) as turn:
                    x = b.add(start, turn.index)
                    weight = w.spread(w.at(factors, b.sub(x, left)))
                    values = strip.recall(w.at(self.passing.at(integer(0), x), lane))
                    turn.next = _products(w, values, weight, turn.values)
                strip.keep(w.at(to, lane), [b.fdiv(one, self.count) for one in turn.values])

            strips(w, VECTORS, self.block, body)

    def _over_channels(
        self, strip: Strip, places: list[tuple[ir.Value, ir.Value]], chain: Chain
    ) -> list[ir.Value]:
        """A sum over channels, in groups: ``places`` are addresses and pitches, ``chain`` adds a channel."""
        w, b = self.w, self.w.b
        groups = b.sdiv(b.add(self.channels, integer(GROUP - 1)), integer(GROUP))
        with loop(w, groups, *(place for place, _ in places), *strip.zeros()) as outer:
            done = b.mul(outer.index, integer(GROUP))
            count = w.least(integer(GROUP), b.sub(self.channels, done))
            with loop(w, count, *outer.values[: len(places)], *strip.zeros()) as turn:
                here, sums = turn.values[: len(places)], turn.values[len(places) :]
                values = [one for place in here for one in strip.read(place)]
                onward = [w.at(place, pitch) for place, (_, pitch) in zip(here, places, strict=True)]
                turn.next = [*onward, *chain(values, sums)]
            totals = outer.values[len(places) :]
            found = [
                b.fadd(one, total) for one, total in zip(turn.values[len(places) :], totals, strict=True)
            ]
            outer.next = [*turn.values[: len(places)], *found]
        return outer.values[len(places) :]

    def _write_sums(self, y: ir.Value, sums: _Ring) -> None:
        """Sums of a row of the map over channels."""
        w, b = self.w, self.w.b
        with loop(w, self.width) as turn:
            place, to = self.map.at(y, turn.index), sums.at(y, turn.index)

            def body(strip: Strip, lane: ir.Value) -> None:
                def chain(values: list[ir.Value], totals: list[ir.Value]) -> list[ir.Value]:
                    return [b.fadd(one, total) for one, total in zip(values, totals, strict=True)]

                places = [(w.at(place, lane), self.map.channel)]
                strip.keep(w.at(to, lane), self._over_channels(strip, places, chain))

            strips(w, VECTORS, self.lanes, body)

    def _write_powers(self, y: ir.Value, means: _Ring, powers: _Ring) -> None:
        """Sums of a row of squares of ``g`` over channels."""
        w, b = self.w, self.w.b
        with loop(w, self.mean_width) as turn:
            x = turn.index
            place = self.map.at(b.add(y, self.crop), b.add(x, self.crop))
            mean_at, to = means.at(y, x), powers.at(y, x)

            def body(strip: Strip, lane: ir.Value) -> None:
                mean = strip.recall(w.at(mean_at, lane))

                def chain(values: list[ir.Value], totals: list[ir.Value]) -> list[ir.Value]:
                    centred = [b.fsub(one, m) for one, m in zip(values, mean, strict=True)]
                    return [w.multiply_add(g, g, total) for g, total in zip(centred, totals, strict=True)]

                places = [(w.at(place, lane), self.map.channel)]
                strip.keep(w.at(to, lane), self._over_channels(strip, places, chain))

            strips(w, VECTORS, self.lanes, body)

    def _divisors(self, powers: list[ir.Value]) -> list[ir.Value]:
        """``max(floor, root)``; a power that is no number stays one."""
        b = self.w.b
        return [
            root(self.w, b.select(b.fcmp_ordered("<", power, self.floor), self.floor, power))
            for power in powers
        ]

    def _write_output(self, y: ir.Value, means: _Ring) -> None:
        w, b = self.w, self.w.b
        twice = b.shl(self.crop, integer(1))
        with loop(w, self.power_width) as turn:
            x = turn.index
            place = self.map.at(b.add(y, twice), b.add(x, twice))
            mean_at = means.at(b.add(y, self.crop), b.add(x, self.crop))
            power_at, to = self.row.at(integer(0), x), self.output.at(y, x)

            def body(strip: Strip, lane: ir.Value) -> None:
                mean = strip.recall(w.at(mean_at, lane))
                divisor = self._divisors(strip.recall(w.at(power_at, lane)))
                with loop(w, self.channels, w.at(place, lane), w.at(to, lane)) as channel:
                    source, target = channel.values
                    centred = [b.fsub(one, m) for one, m in zip(strip.read(source), mean, strict=True)]
                    strip.write(target, [b.fdiv(one, d) for one, d in zip(centred, divisor, strict=True)])
                    channel.next = [w.at(source, self.map.channel), w.at(target, self.output.channel)]

            strips(w, VECTORS, self.lanes, body)

    def _export(self, source: ir.Value, to: _Map, y: ir.Value, width: ir.Value) -> None:
        """A row from scratch to a map of one channel."""
        w, b = self.w, self.w.b
        with loop(w, width) as turn:
            place, target = w.at(source, b.mul(turn.index, self.block)), to.at(y, turn.index)

            def body(strip: Strip, lane: ir.Value) -> None:
                strip.write(w.at(target, lane), strip.recall(w.at(place, lane)))

            strips(w, VECTORS, self.lanes, body)

    def _write_slopes(self, y: ir.Value, slopes: _Ring, inverses: _Ring) -> None:
        """Half the slope of the loss by a row of powers, negative, and the rows' inverse divisors."""
        w, b = self.w, self.w.b
        twice = b.shl(self.crop, integer(1))
        with loop(w, self.power_width) as turn:
            x = turn.index
            places = (self.grad.at(y, x), self.map.at(b.add(y, twice), b.add(x, twice)))
            mean_at = self.mean.at(b.add(y, self.crop), b.add(x, self.crop))
            power_at, to, inverse_to = self.power.at(y, x), slopes.at(y, x), inverses.at(y, x)

            def body(strip: Strip, lane: ir.Value) -> None:
                mean, power = strip.read(w.at(mean_at, lane)), strip.read(w.at(power_at, lane))
                divisor = self._divisors(power)
                inverse = [b.fdiv(w.lanes.constant(1.0), one) for one in divisor]
                strip.keep(w.at(inverse_to, lane), inverse)

                def chain(values: list[ir.Value], totals: list[ir.Value]) -> list[ir.Value]:
                    grads, maps = values[: strip.vectors], values[strip.vectors :]
                    over = [b.fmul(one, i) for one, i in zip(grads, inverse, strict=True)]
                    centred = [b.fsub(one, m) for one, m in zip(maps, mean, strict=True)]
                    return [w.multiply_add(o, g, t) for o, g, t in zip(over, centred, totals, strict=True)]

                found = self._over_channels(
                    strip,
                    [(w.at(places[0], lane), self.grad.channel), (w.at(places[1], lane), self.map.channel)],
                    chain,
                )
                over_power = [b.fdiv(one, b.fmul(d, d)) for one, d in zip(found, divisor, strict=True)]
                above = [b.fcmp_unordered(">", one, self.floor) for one in power]
                strip.keep(
                    w.at(to, lane),
                    [b.select(a, one, w.lanes.zero) for a, one in zip(above, over_power, strict=True)],
                )

            strips(w, VECTORS, self.lanes, body)

    def _inner(
        self, y: ir.Value, x: ir.Value, there: ir.Value, inverses: _Ring, to_power: _Ring
    ) -> tuple[
        list[tuple[ir.Value, ir.Value]],
        Callable[[Strip, ir.Value], Callable[[list[ir.Value]], list[ir.Value]]],
    ]:
        """The slope by ``g`` at a place: what to read of every channel, and what to make of it.

        Where a place is outside, zeros are read.
        """
        w, b = self.w, self.w.b
        upper_y, upper_x = b.sub(y, self.crop), b.sub(x, self.crop)
        inside = b.and_(
            b.icmp_unsigned("<", upper_y, self.power_height), b.icmp_unsigned("<", upper_x, self.power_width)
        )
        inside = b.and_(inside, there)

        def chosen(where: ir.Value, place: ir.Value) -> ir.Value:
            return b.select(where, place, self.zeros)

        grad = (
            chosen(inside, self.grad.at(upper_y, upper_x)),
            b.select(inside, self.grad.channel, integer(0)),
        )
        source = self.map.at(b.add(y, self.crop), b.add(x, self.crop))
        maps = (chosen(there, source), b.select(there, self.map.channel, integer(0)))
        inverse_at = chosen(inside, inverses.at(upper_y, upper_x))
        mean_at, slope_at = chosen(there, self.mean.at(y, x)), chosen(there, to_power.at(y, x))

        def prepared(strip: Strip, lane: ir.Value) -> Callable[[list[ir.Value]], list[ir.Value]]:
            mean, slope = strip.read(w.at(mean_at, lane)), strip.recall(w.at(slope_at, lane))
            negative = [b.fneg(one) for one in slope]
            inverse = strip.recall(w.at(inverse_at, lane))

            def value(values: list[ir.Value]) -> list[ir.Value]:
                over = [b.fmul(one, i) for one, i in zip(values[: strip.vectors], inverse, strict=True)]
                centred = [b.fsub(one, m) for one, m in zip(values[strip.vectors :], mean, strict=True)]
                return [w.multiply_add(g, n, o) for g, n, o in zip(centred, negative, over, strict=True)]

            return value

        return [grad, maps], prepared

    def _write_inner_sums(self, y: ir.Value, inverses: _Ring, to_power: _Ring, sums: _Ring) -> None:
        """Sums of a row of the slope by ``g`` over channels."""
        w, b = self.w, self.w.b
        with loop(w, self.mean_width) as turn:
            to = sums.at(y, turn.index)
            places, prepared = self._inner(y, turn.index, ir.Constant(ir.IntType(1), 1), inverses, to_power)

            def body(strip: Strip, lane: ir.Value) -> None:
                value = prepared(strip, lane)

                def chain(values: list[ir.Value], totals: list[ir.Value]) -> list[ir.Value]:
                    return [b.fadd(one, total) for one, total in zip(value(values), totals, strict=True)]

                here = [(w.at(place, lane), pitch) for place, pitch in places]
                strip.keep(w.at(to, lane), self._over_channels(strip, here, chain))

            strips(w, VECTORS, self.lanes, body)

    def _write_gradient_row(self, y: ir.Value, inverses: _Ring, to_power: _Ring) -> None:
        w, b = self.w, self.w.b
        with loop(w, self.width) as turn:
            x = turn.index
            inner_y, inner_x = b.sub(y, self.crop), b.sub(x, self.crop)
            there = b.and_(
                b.icmp_unsigned("<", inner_y, self.mean_height),
                b.icmp_unsigned("<", inner_x, self.mean_width),
            )
            places, prepared = self._inner(inner_y, inner_x, there, inverses, to_power)
            mean_at, to = self.row.at(integer(0), x), self.output.at(y, x)

            def body(strip: Strip, lane: ir.Value) -> None:
                value, to_mean = prepared(strip, lane), strip.recall(w.at(mean_at, lane))
                here = [w.at(place, lane) for place, _ in places]
                with loop(w, self.channels, *here, w.at(to, lane)) as channel:
                    *sources, target = channel.values
                    found = value([one for source in sources for one in strip.read(source)])
                    strip.write(target, [b.fsub(one, m) for one, m in zip(found, to_mean, strict=True)])
                    onward = [w.at(source, pitch) for source, (_, pitch) in zip(sources, places, strict=True)]
                    channel.next = [*onward, w.at(target, self.output.channel)]

            strips(w, VECTORS, self.lanes, body)


def _products(w: Writer, values: list[ir.Value], weight: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
    return [w.multiply_add(one, weight, total) for one, total in zip(values, sums, strict=True)]
