"""Shared by the kernels of contrast normalisation: the job, rows in scratch, means along y and along x.

Knows: the order of the sums, rings of rows. Does not know: the order of steps, Gaussians, tensors.

Lanes are images. A mean over a window is a *band*: ``size`` weights for every output along an axis. A row is
smoothed along x when it is computed, and along y when it is needed, from the last few rows in a ring buffer.
Rows have zeros on both sides, and a row of zeros stands for rows outside the map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, integer, loop
from cotswold.kernels.compile.jobs import JobFields, Strip, max_int, number_field, range_length
from cotswold.kernels.maps.tasks import JobMap

VECTORS = 2
"""Vectors of images processed at a time."""
FLAT = 4
"""Vectors of a row in scratch processed at a time, across columns."""
GROUP = 16
"""Channels summed in sequence before their sum is added; it determines the bits of the result."""
UNROLL = 4
"""Channels of one iteration of a loop."""
BANDS = ("mean_y", "mean_x", "power_y", "power_x")
"""Fields of the bands."""


JOB = JobFields(
    *("images", "channels", "blocks", "block", "parts", "part_rows", "height", "width", "mean_height"),
    *("mean_width", "power_height", "power_width", "low", "crop", "prefetch_columns", "stream", "floor"),
    *BANDS,
    maps=("map", "grad", "mean", "power", "output"),
)


@dataclass(frozen=True)
class ContrastKind:
    """Kind of kernel: what it writes of the result y or its gradient, and of means and powers."""

    name: str
    result: bool = True
    statistics: bool = False


NORMALISE, GRADIENT = ContrastKind("normalise"), ContrastKind("gradient")
MEASURE = ContrastKind("measure", result=False, statistics=True)
NORMALISE_AND_MEASURE = ContrastKind("normalise_and_measure", statistics=True)


def scratch_elements(block: int, size: int, width: int) -> int:
    """Elements of scratch per thread: rings and rows, with zeros on both sides."""
    return (3 * size + 3 * late_rows(size) + 4) * (width + 2 * (size - 1)) * block


def late_rows(size: int) -> int:
    """Rows of a ring that keeps rows until their windows are complete."""
    return size // 2 + 1


def part_of(
    w: FunctionBuilder, job: ir.Value, number: ir.Value, height: str
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """First lane, first row and end row of a task; ``height`` is the field with the number of all rows."""
    b = w.b
    parts, rows = w.field(job, JOB["parts"]), w.field(job, JOB["part_rows"])
    lane = b.mul(b.udiv(number, parts), w.field(job, JOB["block"]))
    first = b.mul(b.urem(number, parts), rows)
    return lane, first, w.min_int(b.add(first, rows), w.field(job, JOB[height]))


class Ring:
    """A ring buffer of the latest rows of a one-channel map, in scratch; with one row, a plain row."""

    def __init__(self, w: FunctionBuilder, base: ir.Value, count: int, row: ir.Value) -> None:
        self.w, self.base, self.count, self.pitch = w, base, count, row

    def row(self, y: ir.Value) -> ir.Value:
        """Address of a row."""
        b = self.w.b
        return self.w.element_pointer(self.base, b.mul(b.urem(y, integer(self.count)), self.pitch))


Values = list[ir.Value]
Chain = Callable[[Values, list[Values]], list[Values]]
"""Adds the values of one channel, in all maps, to sums."""


class Rows:
    """The block of images of a task, and its rows."""

    def __init__(
        self, w: FunctionBuilder, job: ir.Value, scratch: ir.Value, lane: ir.Value, size: int
    ) -> None:
        self.w, self.size, b = w, size, w.b
        self.height, self.width = w.field(job, JOB["height"]), w.field(job, JOB["width"])
        self.mean_height, self.mean_width = (
            w.field(job, JOB["mean_height"]),
            w.field(job, JOB["mean_width"]),
        )
        self.power_height, self.power_width = (
            w.field(job, JOB["power_height"]),
            w.field(job, JOB["power_width"]),
        )
        self.low, self.crop = w.field(job, JOB["low"]), w.field(job, JOB["crop"])
        self.channels, self.block = (
            w.field(job, JOB["channels"]),
            w.field(job, JOB["block"]),
        )
        self.lanes = w.min_int(self.block, b.sub(w.field(job, JOB["images"]), lane))
        self.floor = number_field(w, job, JOB["floor"])
        number = b.sitofp(self.channels, w.lanes.scalar)
        self.count = w.splat(number)
        self.share = b.fdiv(w.lanes.constant(1.0), self.count)
        self.bands = [w.pointer_field(job, JOB[name]) for name in BANDS]
        self.map, self.output = (
            JobMap(w, job, JOB["map"], lane),
            JobMap(w, job, JOB["output"], lane),
        )
        self.mean, self.power = (
            JobMap(w, job, JOB["mean"], lane),
            JobMap(w, job, JOB["power"], lane),
        )
        self.prefetch_offset = b.mul(self.map.column, w.field(job, JOB["prefetch_columns"]))
        self.stream = b.icmp_signed("!=", w.field(job, JOB["stream"]), integer(0))
        self._beside = b.mul(self.block, integer(size - 1))
        self._pitch = b.add(b.mul(self.width, self.block), b.shl(self._beside, integer(1)))
        self._free = scratch
        self.zeros = self.ring(1).base
        self.clear(b.sub(b.mul(integer(0), self.block), self._beside), self._pitch, self.zeros)

    def ring(self, count: int) -> Ring:
        """Allocate ``count`` rows of scratch."""
        found = Ring(self.w, self.w.element_pointer(self._free, self._beside), count, self._pitch)
        self._free = self.w.element_pointer(self._free, self.w.b.mul(self._pitch, integer(count)))
        return found

    def clear(self, start: ir.Value, count: ir.Value, row: ir.Value) -> None:
        """Write ``count`` zeros from ``start`` on."""
        with loop(self.w, count, step=self.w.lanes.count) as turn:
            self.w.store(self.w.element_pointer(row, self.w.b.add(start, turn.index)), self.w.lanes.zero)

    def clear_margins(self, ring: Ring, width: ir.Value) -> None:
        """Write zeros before and after the columns of a ring's rows."""
        b = self.w.b
        for y in range(ring.count):
            row = ring.row(integer(y))
            self.clear(b.neg(self._beside), self._beside, row)
            self.clear(b.mul(width, self.block), self._beside, row)

    def start(self, y: ir.Value) -> ir.Value:
        """First row of a window."""
        return max_int(self.w, self.w.b.sub(y, self.low), integer(0))

    def stop(self, y: ir.Value, extent: ir.Value) -> ir.Value:
        """End row of a window."""
        return self.w.min_int(self.w.b.add(self.w.b.sub(y, self.low), integer(self.size)), extent)

    def flat(self, first: ir.Value, stop: ir.Value, body: Callable[[Strip, ir.Value], None]) -> None:
        """Run ``body(strip, offset)`` over columns of rows in scratch, regardless of column boundaries."""
        w, b = self.w, self.w.b
        begin, count = b.mul(first, self.block), b.mul(range_length(w, first, stop), self.block)
        wide = FLAT * w.lanes.count
        whole = b.mul(b.sdiv(count, integer(wide)), integer(wide))
        with loop(w, whole, step=wide) as turn:
            body(Strip(w, FLAT, None), b.add(begin, turn.index))
        after = b.add(begin, whole)
        with loop(w, b.sub(count, whole), step=w.lanes.count) as turn:
            body(Strip(w, 1, None), b.add(after, turn.index))

    def inverse(self, power: ir.Value) -> ir.Value:
        """1 / max(sqrt(power), floor); NaN stays NaN."""
        b = self.w.b
        floored = b.select(b.fcmp_ordered("<", power, self.floor), self.floor, power)
        return b.fdiv(self.w.lanes.constant(1.0), self.w.sqrt(floored))

    def mean_along_y(
        self, rows: Ring, y: ir.Value, band: int, extent: ir.Value
    ) -> Callable[[Strip, ir.Value], Values]:
        """Return a function that computes the means along y of a row, strip by strip."""
        w, b = self.w, self.w.b
        top, weights = b.sub(y, self.low), w.element_pointer(self.bands[band], b.mul(y, integer(self.size)))
        taken = []
        for k in range(self.size):
            row = b.add(top, integer(k))
            inside = b.icmp_unsigned("<", row, extent)
            taken.append(
                (b.select(inside, rows.row(row), self.zeros), w.load_broadcast(w.element_pointer(weights, k)))
            )

        def means(strip: Strip, offset: ir.Value) -> Values:
            return _weighted_sum(
                w, strip, [(w.element_pointer(place, offset), weight) for place, weight in taken]
            )

        return means

    def mean_along_x(self, source: ir.Value, target: ir.Value, band: int, outputs: ir.Value) -> None:
        """Compute the means along x of a row; away from the ends the middle column's weights apply."""
        w, b, size = self.w, self.w.b, integer(self.size)
        weights = self.bands[band]
        first = w.min_int(integer(self.size - 1), outputs)
        last = max_int(w, first, b.sub(outputs, integer(self.size - 1)))
        left = w.element_pointer(source, b.neg(b.mul(self.low, self.block)))
        lefts = [w.element_pointer(left, b.mul(self.block, integer(k))) for k in range(self.size)]

        def written(factors: ir.Value) -> Callable[[Strip, ir.Value], None]:
            taken = [w.load_broadcast(w.element_pointer(factors, k)) for k in range(self.size)]

            def body(strip: Strip, offset: ir.Value) -> None:
                places = [
                    (w.element_pointer(place, offset), weight)
                    for place, weight in zip(lefts, taken, strict=True)
                ]
                strip.store_scratch(w.element_pointer(target, offset), _weighted_sum(w, strip, places))

            return body

        for start, stop in ((integer(0), first), (last, outputs)):
            with loop(w, b.sub(stop, start)) as turn:
                x = b.add(start, turn.index)
                self.flat(x, b.add(x, integer(1)), written(w.element_pointer(weights, b.mul(x, size))))
        middle = b.mul(b.lshr(outputs, integer(1)), size)
        self.flat(first, last, written(w.element_pointer(weights, middle)))

    def sum_channels(
        self,
        strip: Strip,
        places: list[tuple[ir.Value, ir.Value]],
        sums: int,
        chain: Chain,
        fetch: bool = False,
    ) -> list[Values]:
        """Sum over channels, in groups; ``places`` are addresses and channel strides.

        On the first read, prefetch: channel strides are too long for the hardware prefetcher.
        """
        w, b = self.w, self.w.b
        maps, vectors = len(places), strip.vectors
        zeros = [w.lanes.zero] * (sums * vectors)

        def turned(here: Values, totals: Values, channels: int) -> Values:
            split = [totals[i * vectors : (i + 1) * vectors] for i in range(sums)]
            for _ in range(channels):
                for place in here if fetch else ():
                    strip.prefetch(w.element_pointer(place, self.prefetch_offset))
                values = [one for place in here for one in strip.load(place)]
                split = chain(values, split)
                here = [
                    w.element_pointer(place, pitch) for place, (_, pitch) in zip(here, places, strict=True)
                ]
            return [*here, *(one for total in split for one in total)]

        groups = b.sdiv(b.add(self.channels, integer(GROUP - 1)), integer(GROUP))
        with loop(w, groups, *(place for place, _ in places), *zeros) as outer:
            count = w.min_int(integer(GROUP), b.sub(self.channels, b.mul(outer.index, integer(GROUP))))
            carried = [*outer.values[:maps], *zeros]
            for channels, turns in (
                (UNROLL, b.sdiv(count, integer(UNROLL))),
                (1, b.srem(count, integer(UNROLL))),
            ):
                with loop(w, turns, *carried) as turn:
                    turn.next = turned(turn.values[:maps], turn.values[maps:], channels)
                carried = turn.values
            found = zip(carried[maps:], outer.values[maps:], strict=True)
            outer.next = [*carried[:maps], *(b.fadd(one, total) for one, total in found)]
        totals = outer.values[maps:]
        return [totals[i * vectors : (i + 1) * vectors] for i in range(sums)]

    def each_channel(
        self,
        strip: Strip,
        places: list[tuple[ir.Value, ir.Value]],
        target: ir.Value,
        value: Callable[[Values], Values],
    ) -> None:
        """Write ``value`` of every channel, with streaming stores if the job says so."""
        w, b = self.w, self.w.b

        def channels(write: Callable[[ir.Value, Values], None]) -> None:
            carried = [*(place for place, _ in places), target]
            pitches = [*(pitch for _, pitch in places), self.output.channel]
            for count, turns in (
                (UNROLL, b.sdiv(self.channels, integer(UNROLL))),
                (1, b.srem(self.channels, integer(UNROLL))),
            ):
                with loop(w, turns, *carried) as turn:
                    here = list(turn.values)
                    for _ in range(count):
                        for place in here[:-1]:
                            strip.prefetch(w.element_pointer(place, self.prefetch_offset))
                        write(
                            here[-1],
                            value([one for place in here[:-1] for one in strip.load(place)]),
                        )
                        here = [
                            w.element_pointer(place, pitch)
                            for place, pitch in zip(here, pitches, strict=True)
                        ]
                    turn.next = here
                carried = turn.values

        if strip.mask is not None:
            channels(strip.store)
            return
        with b.if_else(self.stream) as (past, through):
            with past:
                channels(lambda place, values: stream(strip, place, values))
            with through:
                channels(strip.store)


def stream(strip: Strip, place: ir.Value, values: Values) -> None:
    """Write whole vectors with streaming stores; the address is aligned to a cache line."""
    w = strip.w
    module = w.function.module
    for v, value in enumerate(values):
        stored = w.b.store(value, strip.vector_address(place, v), align=w.lanes.count * w.lanes.scalar_bytes)
        stored.set_metadata("nontemporal", module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


def _weighted_sum(w: FunctionBuilder, strip: Strip, places: list[tuple[ir.Value, ir.Value]]) -> Values:
    sums = strip.zeros()
    for k, (place, weight) in enumerate(places):
        values = strip.load_scratch(place)
        if k == 0:
            sums = [w.b.fmul(one, weight) for one in values]
        else:
            sums = [w.fma(one, weight, total) for one, total in zip(values, sums, strict=True)]
    return sums
