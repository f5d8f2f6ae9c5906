"""Kernel of contrast normalisation, forward, row by row, for all channels of some images.

Knows: the rows of each step that are needed next. Does not know: Gaussians, tensors, autograd.

In the terms of Le et al. 2012, with ``m`` the mean of h over window and channels:

    s, v: mean and variance of h over the channels of a position -> m, the mean of s over the window
    v + (s - m)², the mean over the channels of (h - m)² -> p, its mean over the window -> y

So h is read twice: once from memory, and for y from a cache. ``v + (s - m)²`` does not cancel, because both
terms are positive.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import Strip, loop_range, max_int, strips, tasks
from cotswold.kernels.maps.normalisation_rows import (
    VECTORS,
    ContrastKind,
    Rows,
    Values,
    late_rows,
    part_of,
)
from cotswold.kernels.maps.tasks import JobMap


def write_forward(kind: ContrastKind, lanes: Lanes, size: int, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows of a block of images."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        lane, first, stop = part_of(w, job, number, "power_height")
        _Forward(w, job, scratch, lane, size).write(first, stop, kind)
        w.b.fence("seq_cst")
    return module


class _Forward(Rows):
    def __init__(
        self, w: FunctionBuilder, job: ir.Value, scratch: ir.Value, lane: ir.Value, size: int
    ) -> None:
        super().__init__(w, job, scratch, lane, size)
        late = late_rows(size)
        self.shares, self.deviations, self.means = (self.ring(late) for _ in range(3))
        self.along, self.powers = self.ring(size), self.ring(size)
        self.squares, self.smoothed = self.ring(1), self.ring(1)
        self.clear_margins(self.shares, self.width)
        self.clear_margins(self.squares, self.mean_width)

    def write(self, first: ir.Value, stop: ir.Value, kind: ContrastKind) -> None:
        """Compute rows ``first`` to ``stop`` of the output, or of means and powers."""
        w, b = self.w, self.w.b
        start = self.start(first)
        with loop(w, b.sub(stop, first), start, self.start(start)) as turn:
            y = b.add(first, turn.index)
            power_stop = self.stop(y, self.mean_height)
            with loop(w, max_int(w, b.sub(power_stop, turn.values[0]), integer(0)), turn.values[1]) as inner:
                row = b.add(turn.values[0], inner.index)
                sum_stop = self.stop(row, self.height)
                with loop_range(w, inner.values[0], sum_stop) as one:
                    self._sum(one)
                inner.next = [max_int(w, inner.values[0], sum_stop)]
                self._centre(row)
                if kind.statistics:
                    self._export(self.means.row(row), self.mean, row, self.mean_width)
            turn.next = [max_int(w, turn.values[0], power_stop), inner.values[0]]
            self._smooth_powers(y)
            if kind.statistics:
                self._export(self.smoothed.base, self.power, y, self.power_width)
            if kind.result:
                self._write_row(y)

    def _sum(self, y: ir.Value) -> None:
        """Compute means and variances over channels of a row of the map."""
        w, b = self.w, self.w.b
        to_mean, to_spread = self.shares.row(y), self.deviations.row(y)
        with loop(w, self.width) as turn:
            place, column = self.map.position_address(y, turn.index), b.mul(turn.index, self.block)

            def body(strip: Strip, lane: ir.Value) -> None:
                places = [(w.element_pointer(place, lane), self.map.channel)]

                def add(values: Values, sums: list[Values]) -> list[Values]:
                    return [[b.fadd(one, total) for one, total in zip(values, sums[0], strict=True)]]

                (total,) = self.sum_channels(strip, places, 1, add, fetch=True)
                mean = [b.fdiv(one, self.count) for one in total]

                def spread(values: Values, sums: list[Values]) -> list[Values]:
                    apart = [b.fsub(one, m) for one, m in zip(values, mean, strict=True)]
                    return [[w.fma(a, a, total) for a, total in zip(apart, sums[0], strict=True)]]

                (squares,) = self.sum_channels(strip, places, 1, spread)
                offset = b.add(column, lane)
                strip.store_scratch(w.element_pointer(to_mean, offset), mean)
                strip.store_scratch(
                    w.element_pointer(to_spread, offset), [b.fmul(one, self.share) for one in squares]
                )

            strips(w, VECTORS, self.lanes, body)
        self.mean_along_x(to_mean, self.along.row(y), 1, self.mean_width)

    def _centre(self, y: ir.Value) -> None:
        """Compute a row of means over the window, and of the mean squares of the centred values."""
        w, b = self.w, self.w.b
        smooth = self.mean_along_y(self.along, y, 0, self.height)
        aside = b.mul(self.crop, self.block)
        share = w.element_pointer(self.shares.row(b.add(y, self.crop)), aside)
        spread = w.element_pointer(self.deviations.row(b.add(y, self.crop)), aside)
        to_mean = self.means.row(y)

        def body(strip: Strip, offset: ir.Value) -> None:
            mean = smooth(strip, offset)
            strip.store_scratch(w.element_pointer(to_mean, offset), mean)
            apart = [
                b.fsub(s, m)
                for s, m in zip(strip.load_scratch(w.element_pointer(share, offset)), mean, strict=True)
            ]
            spreads = strip.load_scratch(w.element_pointer(spread, offset))
            squares = [w.fma(a, a, v) for a, v in zip(apart, spreads, strict=True)]
            strip.store_scratch(w.element_pointer(self.squares.base, offset), squares)

        self.flat(integer(0), self.mean_width, body)
        self.mean_along_x(self.squares.base, self.powers.row(y), 3, self.power_width)

    def _smooth_powers(self, y: ir.Value) -> None:
        """Compute a row of powers."""
        w = self.w
        smooth = self.mean_along_y(self.powers, y, 2, self.mean_height)

        def body(strip: Strip, offset: ir.Value) -> None:
            strip.store_scratch(w.element_pointer(self.smoothed.base, offset), smooth(strip, offset))

        self.flat(integer(0), self.power_width, body)

    def _write_row(self, y: ir.Value) -> None:
        w, b = self.w, self.w.b
        twice = b.shl(self.crop, integer(1))
        means = w.element_pointer(self.means.row(b.add(y, self.crop)), b.mul(self.crop, self.block))
        with loop(w, self.power_width) as turn:
            x = turn.index
            place, to = (
                self.map.position_address(b.add(y, twice), b.add(x, twice)),
                self.output.position_address(y, x),
            )
            column = b.mul(x, self.block)

            def body(strip: Strip, lane: ir.Value) -> None:
                offset = b.add(column, lane)
                mean = strip.load_scratch(w.element_pointer(means, offset))
                powers = strip.load_scratch(w.element_pointer(self.smoothed.base, offset))
                inverse = [self.inverse(power) for power in powers]

                def value(values: Values) -> Values:
                    centred = [b.fsub(one, m) for one, m in zip(values, mean, strict=True)]
                    return [b.fmul(g, i) for g, i in zip(centred, inverse, strict=True)]

                here = [(w.element_pointer(place, lane), self.map.channel)]
                self.each_channel(strip, here, w.element_pointer(to, lane), value)

            strips(w, VECTORS, self.lanes, body)

    def _export(self, source: ir.Value, to: JobMap, y: ir.Value, width: ir.Value) -> None:
        """Copy a row from scratch to a map of one channel."""
        w, b = self.w, self.w.b
        with loop(w, width) as turn:
            place, target = (
                w.element_pointer(source, b.mul(turn.index, self.block)),
                to.position_address(y, turn.index),
            )

            def body(strip: Strip, lane: ir.Value) -> None:
                strip.store(
                    w.element_pointer(target, lane), strip.load_scratch(w.element_pointer(place, lane))
                )

            strips(w, VECTORS, self.lanes, body)
