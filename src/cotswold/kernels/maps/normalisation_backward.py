"""Kernel of the gradient of contrast normalisation, row by row, for all channels of some images.

Knows: the rows of each step that are needed next. Does not know: Gaussians, tensors, autograd.

The inputs are the means m, the powers p and the inverse divisors i, with ``g = h - m``, and the output's
gradient ``a``; the bands are transposed:

    sums over channels of a g, of a, of g -> i sum(a g) / p, unless the floor is the divisor -> its mean t
    i sum(a) - t sum(g), the sum of the gradient of g -> its mean u -> gradient of h = i a - t g - u

So a and h are read twice: from memory, and for the last step from a cache.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import I1, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import Strip, loop_range, max_int, strips, tasks
from cotswold.kernels.maps.normalisation_rows import (
    JOB,
    VECTORS,
    Rows,
    Values,
    late_rows,
    part_of,
)
from cotswold.kernels.maps.tasks import JobMap


def write_backward(lanes: Lanes, size: int, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows of a block of images."""
    module = ir.Module(f"gradient_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        lane, first, stop = part_of(w, job, number, "height")
        _Backward(w, job, scratch, lane, size).write(first, stop)
        w.b.fence("seq_cst")
    return module


class _Backward(Rows):
    def __init__(
        self, w: FunctionBuilder, job: ir.Value, scratch: ir.Value, lane: ir.Value, size: int
    ) -> None:
        super().__init__(w, job, scratch, lane, size)
        self.grad = JobMap(w, job, JOB["grad"], lane)
        late = late_rows(size)
        self.grad_over_div, self.centred_sum, self.mean_slope = (self.ring(late) for _ in range(3))
        self.slopes, self.inners, self.inverses = (self.ring(size) for _ in range(3))
        self.slope, self.inner, self.forwarded = (self.ring(1) for _ in range(3))
        self.clear_margins(self.slope, self.power_width)
        self.clear_margins(self.inner, self.mean_width)

    def write(self, first: ir.Value, stop: ir.Value) -> None:
        """Compute rows ``first`` to ``stop`` of the gradient of the map."""
        w, b = self.w, self.w.b
        start = self.start(first)
        sums_start = w.min_int(start, b.add(self.start(start), self.crop))
        with loop(w, b.sub(stop, first), start, sums_start) as turn:
            y = b.add(first, turn.index)
            inner_stop = self.stop(y, self.mean_height)
            with loop(w, max_int(w, b.sub(inner_stop, turn.values[0]), integer(0)), turn.values[1]) as inner:
                row = b.add(turn.values[0], inner.index)
                seen = b.add(self.stop(row, self.power_height), self.crop)
                sum_stop = max_int(w, b.add(row, integer(1)), seen)
                with loop_range(w, inner.values[0], sum_stop) as one:
                    self._sum(one)
                inner.next = [max_int(w, inner.values[0], sum_stop)]
                self._mean_slope(row)
            turn.next = [max_int(w, turn.values[0], inner_stop), inner.values[0]]
            self._write_row(y)

    def _is_inside(self, y: ir.Value, x: ir.Value, height: ir.Value, width: ir.Value) -> ir.Value:
        b = self.w.b
        return b.and_(b.icmp_unsigned("<", y, height), b.icmp_unsigned("<", x, width))

    def _addresses(
        self, y: ir.Value, x: ir.Value, there: ir.Value
    ) -> tuple[list[tuple[ir.Value, ir.Value]], ir.Value, ir.Value]:
        """Addresses of gradient, map, mean and power of a position; of zeros if it is outside."""
        b = self.w.b
        upper_y, upper_x = b.sub(y, self.crop), b.sub(x, self.crop)
        inside = b.and_(there, self._is_inside(upper_y, upper_x, self.power_height, self.power_width))

        def chosen(where: ir.Value, map: JobMap, place: ir.Value) -> tuple[ir.Value, ir.Value]:
            return b.select(where, place, self.zeros), b.select(where, map.channel, integer(0))

        grad = chosen(inside, self.grad, self.grad.position_address(upper_y, upper_x))
        source = chosen(there, self.map, self.map.position_address(b.add(y, self.crop), b.add(x, self.crop)))
        mean, _ = chosen(there, self.mean, self.mean.position_address(y, x))
        power, _ = chosen(inside, self.power, self.power.position_address(upper_y, upper_x))
        return [grad, source], mean, power

    def _sum(self, y: ir.Value) -> None:
        """Compute a row of sums over channels, and of the power's gradient, smoothed along x."""
        w, b = self.w, self.w.b
        to_over, to_centre = self.grad_over_div.row(y), self.centred_sum.row(y)
        to_inverse, zero = self.inverses.row(y), w.lanes.zero
        with loop(w, self.mean_width) as turn:
            x = turn.index
            places, mean_at, power_at = self._addresses(y, x, ir.Constant(I1, 1))
            column = b.mul(x, self.block)
            to_slope = w.element_pointer(self.slope.base, b.mul(b.sub(x, self.crop), self.block))

            def body(strip: Strip, lane: ir.Value) -> None:
                mean, power = (
                    strip.load(w.element_pointer(mean_at, lane)),
                    strip.load(w.element_pointer(power_at, lane)),
                )

                def chain(values: Values, sums: list[Values]) -> list[Values]:
                    grads = values[: strip.vectors]
                    centred = [b.fsub(h, m) for h, m in zip(values[strip.vectors :], mean, strict=True)]
                    both = zip(grads, centred, sums[0], strict=True)
                    return [
                        [w.fma(a, g, total) for a, g, total in both],
                        [b.fadd(a, total) for a, total in zip(grads, sums[1], strict=True)],
                        [b.fadd(g, total) for g, total in zip(centred, sums[2], strict=True)],
                    ]

                here = [(w.element_pointer(place, lane), pitch) for place, pitch in places]
                products, grads, centred = self.sum_channels(strip, here, 3, chain, fetch=True)
                inverse = [self.inverse(one) for one in power]
                slopes = []
                for one, i, p in zip(products, inverse, power, strict=True):
                    # not by the cube of i, whose error would be three times that of i
                    slope = b.fdiv(b.fmul(b.fmul(one, i), self.share), p)
                    slopes.append(b.select(b.fcmp_unordered(">", p, self.floor), slope, zero))
                offset = b.add(column, lane)
                strip.store_scratch(w.element_pointer(to_slope, lane), slopes)
                over = [b.fmul(one, i) for one, i in zip(grads, inverse, strict=True)]
                strip.store_scratch(w.element_pointer(to_inverse, offset), inverse)
                strip.store_scratch(w.element_pointer(to_over, offset), over)
                strip.store_scratch(w.element_pointer(to_centre, offset), centred)

            strips(w, VECTORS, self.lanes, body)
        self.mean_along_x(self.slope.base, self.slopes.row(b.sub(y, self.crop)), 3, self.mean_width)

    def _mean_slope(self, y: ir.Value) -> None:
        """Compute a row of t, and of the gradient of g, its mean over channels smoothed along x."""
        w, b = self.w, self.w.b
        smooth = self.mean_along_y(self.slopes, y, 2, self.power_height)
        over, centre, to = self.grad_over_div.row(y), self.centred_sum.row(y), self.mean_slope.row(y)

        def body(strip: Strip, offset: ir.Value) -> None:
            tilt = smooth(strip, offset)
            strip.store_scratch(w.element_pointer(to, offset), tilt)
            found = []
            overs, centres = (
                strip.load_scratch(w.element_pointer(over, offset)),
                strip.load_scratch(w.element_pointer(centre, offset)),
            )
            for t, o, c in zip(tilt, overs, centres, strict=True):
                found.append(b.fmul(w.fma(b.fneg(t), c, o), self.share))
            strip.store_scratch(w.element_pointer(self.inner.base, offset), found)

        self.flat(integer(0), self.mean_width, body)
        self.mean_along_x(self.inner.base, self.inners.row(y), 1, self.width)

    def _write_row(self, y: ir.Value) -> None:
        w, b = self.w, self.w.b
        smooth = self.mean_along_y(self.inners, y, 0, self.mean_height)

        def pass_on(strip: Strip, offset: ir.Value) -> None:
            strip.store_scratch(w.element_pointer(self.forwarded.base, offset), smooth(strip, offset))

        self.flat(integer(0), self.width, pass_on)
        inner_y = b.sub(y, self.crop)
        tilts, inverses = self.mean_slope.row(inner_y), self.inverses.row(inner_y)
        with loop(w, self.width) as turn:
            x = turn.index
            inner_x = b.sub(x, self.crop)
            there = self._is_inside(inner_y, inner_x, self.mean_height, self.mean_width)
            places, mean_at, _ = self._addresses(inner_y, inner_x, there)
            column = b.mul(inner_x, self.block)
            tilt_at = b.select(there, w.element_pointer(tilts, column), self.zeros)
            inverse_at = b.select(there, w.element_pointer(inverses, column), self.zeros)
            passed_at, to = (
                w.element_pointer(self.forwarded.base, b.mul(x, self.block)),
                self.output.position_address(y, x),
            )

            def body(strip: Strip, lane: ir.Value) -> None:
                mean, tilt = (
                    strip.load(w.element_pointer(mean_at, lane)),
                    strip.load_scratch(w.element_pointer(tilt_at, lane)),
                )
                inverse = strip.load_scratch(w.element_pointer(inverse_at, lane))
                passed = strip.load_scratch(w.element_pointer(passed_at, lane))

                def value(values: Values) -> Values:
                    found = []
                    for v in range(strip.vectors):
                        over = b.fsub(b.fmul(values[v], inverse[v]), passed[v])
                        centred = b.fsub(values[strip.vectors + v], mean[v])
                        found.append(w.fma(b.fneg(centred), tilt[v], over))
                    return found

                here = [(w.element_pointer(place, lane), pitch) for place, pitch in places]
                self.each_channel(strip, here, w.element_pointer(to, lane), value)

            strips(w, VECTORS, self.lanes, body)
