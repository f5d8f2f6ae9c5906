"""Code generator of a smooth random field: drawn by a hash, smoothed along x, then along y.

Knows: the layout of the field in scratch. Does not know: images, interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from cotswold.kernels.compile.emit import FunctionBuilder, integer, loop
from cotswold.kernels.warp.images import GOLDEN
from cotswold.kernels.warp.job import JOB, SMOOTHED_ROWS, ZERO_ROWS
from cotswold.kernels.warp.vectors import I32Vectors


class FieldGenerator:
    """Code generator of the field of an image.

    The field is drawn with margins left and right, smoothed along x into rows with zeros above and below,
    then smoothed along y back to the place where it was drawn.
    """

    def __init__(self, w: FunctionBuilder, job: ir.Value, number: ir.Value, scratch: ir.Value) -> None:
        b, count = w.b, w.lanes.count
        self.w, self.job, self.number = w, job, number
        self.height, self.width = w.field(job, JOB["height"]), w.field(job, JOB["width"])
        self.taps_x, self.taps_y = w.field(job, JOB["taps_x"]), w.field(job, JOB["taps_y"])
        self.taps = w.pointer_field(job, JOB["taps"])
        self.body, self.margin = _round_up(w, self.width, count), _round_up(w, self.taps_x, count)
        self.rows = _round_up(w, self.height, SMOOTHED_ROWS)
        self.pitch = b.add(self.body, b.add(self.margin, self.margin))
        self.part = b.mul(self.rows, self.pitch)
        self.smooth_part = b.mul(b.add(self.height, integer(2 * ZERO_ROWS)), self.body)
        self.random_field = scratch
        self.smooth = w.element_pointer(scratch, b.add(self.part, self.part))

    def write(self) -> None:
        """Generate the whole field."""
        self._clear()
        for part in (0, 1):
            self._draw(part)
        self._smooth_rows()
        self._smooth_columns()

    def row_address(self, part: int, y: ir.Value) -> ir.Value:
        """Address of a row of the finished field."""
        return self.w.element_pointer(
            self._part(self.random_field, part, self.part), self.w.b.mul(y, self.pitch)
        )

    def _part(self, plane: ir.Value, part: int, size: ir.Value) -> ir.Value:
        return self.w.element_pointer(plane, self.w.b.mul(integer(part), size))

    def _clear(self) -> None:
        w, b = self.w, self.w.b
        one = b.add(self.part, self.smooth_part)
        with loop(w, b.add(one, one), step=w.lanes.count) as turn:
            w.store(w.element_pointer(self.random_field, turn.index), w.lanes.zero)

    def _draw(self, part: int) -> None:
        """Draw numbers in -1 to 1."""
        w, b, words = self.w, self.w.b, I32Vectors(self.w)
        key = w.field(w.pointer_field(self.job, JOB["keys"]), self.number)
        low, high = words.splat(key), words.splat(b.lshr(key, integer(32)))
        stream = words.splat(w.field(self.job, JOB["stream"]))
        plane = w.element_pointer(self._part(self.random_field, part, self.part), self.margin)
        begin = b.mul(integer(part), b.mul(self.height, self.width))
        with loop(w, self.height) as row:
            places, first = (
                w.element_pointer(plane, b.mul(row.index, self.pitch)),
                b.mul(row.index, self.width),
            )
            with loop(w, self.width, step=w.lanes.count) as turn:
                place = words.numbered(b.add(b.add(begin, first), turn.index))
                state = b.add(b.mul(place, words.constant(GOLDEN)), stream)
                state = words.mixed(b.add(words.mixed(b.xor(state, low)), high))
                unit = b.fmul(
                    b.sitofp(b.lshr(state, words.constant(8)), w.lanes.type), w.lanes.constant(2.0**-24)
                )
                drawn = b.fadd(w.lanes.constant(-1.0), b.fmul(w.lanes.constant(2.0), unit))
                inside = w.lane_mask(b.sub(self.width, turn.index))
                w.store(w.element_pointer(places, turn.index), b.select(inside, drawn, w.lanes.zero))

    def _smooth_rows(self) -> None:
        w, b = self.w, self.w.b
        taps = b.add(b.add(self.taps_x, self.taps_x), integer(1))
        first = b.sub(integer(0), self.taps_x)
        with loop(w, self.rows, step=SMOOTHED_ROWS) as row, loop(w, self.body, step=w.lanes.count) as turn:
            sources, targets = [], []
            for part in (0, 1):
                source = w.element_pointer(
                    self._part(self.random_field, part, self.part), b.add(self.margin, turn.index)
                )
                target = w.element_pointer(self._part(self.smooth, part, self.smooth_part), turn.index)
                for one in range(SMOOTHED_ROWS):
                    y = b.add(row.index, integer(one))
                    sources.append(w.element_pointer(source, b.mul(y, self.pitch)))
                    targets.append(w.element_pointer(target, b.mul(b.add(y, integer(ZERO_ROWS)), self.body)))
            for target, value in zip(
                targets, self._weighted_sums(first, taps, sources, integer(1)), strict=True
            ):
                w.store(target, value)

    def _smooth_columns(self) -> None:
        w, b = self.w, self.w.b
        with loop(w, self.height, step=SMOOTHED_ROWS) as row:
            above = b.add(row.index, integer(ZERO_ROWS))
            first = b.sub(integer(0), w.min_int(self.taps_y, above))
            last = w.min_int(self.taps_y, b.sub(b.sub(self.height, integer(1)), row.index))
            taps = b.add(b.sub(last, first), integer(1))
            with loop(w, self.body, step=w.lanes.count) as turn:
                sources, targets = [], []
                for part in (0, 1):
                    source = w.element_pointer(self._part(self.smooth, part, self.smooth_part), turn.index)
                    for one in range(SMOOTHED_ROWS):
                        y = b.add(row.index, integer(one))
                        sources.append(
                            w.element_pointer(source, b.mul(b.add(y, integer(ZERO_ROWS)), self.body))
                        )
                        targets.append(w.element_pointer(self.row_address(part, y), turn.index))
                for target, value in zip(
                    targets, self._weighted_sums(first, taps, sources, self.body), strict=True
                ):
                    w.store(target, value)

    def _weighted_sums(
        self, first: ir.Value, taps: ir.Value, sources: Sequence[ir.Value], stride: ir.Value
    ) -> list[ir.Value]:
        """Weighted sums of neighbours, with taps from ``first`` on, for each source."""
        w, b = self.w, self.w.b
        place = b.mul(first, stride)
        tap = w.element_pointer(self.taps, first)
        begun = [w.element_pointer(source, place) for source in sources]
        with loop(w, taps, integer(0), *[w.lanes.zero] * len(sources)) as turn:
            offset, *totals = turn.values
            weight = w.load_broadcast(w.element_pointer(tap, turn.index))
            turn.next = [b.add(offset, stride)]
            for source, total in zip(begun, totals, strict=True):
                turn.next.append(b.fadd(total, b.fmul(weight, w.load(w.element_pointer(source, offset)))))
        return turn.values[1:]


def _round_up(w: FunctionBuilder, size: ir.Value, step: int) -> ir.Value:
    """Return the least multiple of ``step`` that is at least ``size``."""
    b = w.b
    return b.mul(b.sdiv(b.add(size, integer(step - 1)), integer(step)), integer(step))
