"""Max pooling by CPU kernels: forward, and the gradient with respect to its input.

Knows: the cut of a map into tasks, the order of comparisons. Does not know: autograd.

Lanes are images, and channels where these are contiguous. The forward pass compares the positions of a window
in reading order. It may write one byte an output: the number of the position in its window that holds the
maximum. The gradient of a position is the sum, in reading order, over the windows whose byte names it. So
backward reads neither the input nor the output.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
import torch
from llvmlite import ir
from numpy.typing import NDArray
from torch import Tensor

from cotswold.geometry import Window
from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, VOID, FunctionBuilder, Lanes, declare, integer, loop
from cotswold.kernels.compile.jobs import (
    JobFields,
    Strip,
    cached_kernel,
    loop_range,
    max_int,
    prepare_kernel,
    strips,
    tasks,
)
from cotswold.kernels.compile.self_test_reference import Array
from cotswold.kernels.machine.execution import PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.tasks import JobMap, Workers
from cotswold.kernels.operands import NOWHERE, pointer_of, required_map_strides

VECTORS = 4
"""Vectors compared at a time."""
TASKS_A_THREAD = 8
"""Tasks per thread, at least, if a map has enough rows."""
BLOCK_BYTES = 3 << 10
"""Least contiguous bytes of a task: memory is slow if read in smaller pieces."""
CACHED_BYTES = 1 << 19
"""Bytes of the input rows of a window, so that they stay in the second-level cache."""
I8 = ir.IntType(8)

JOB = JobFields(
    *("lanes", "blocks", "block", "parts", "part_rows", "in_height", "in_width", "out_height", "out_width"),
    *("size_y", "size_x", "stride_y", "stride_x", "pad_y", "pad_x"),
    maps=("input", "output", "places"),
)


@dataclass(frozen=True)
class MaxPass:
    """A pass: backward or forward; forward with bytes of positions or without, with relu or without."""

    backward: bool
    places: bool = True
    relu: bool = False


def write_max_pooling(which: MaxPass, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows of a block of lanes."""
    module = ir.Module(f"max_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        b = w.b
        part, rest = (op(number, w.field(job, JOB["parts"])) for op in (b.urem, b.udiv))
        first, group = (op(rest, w.field(job, JOB["blocks"])) for op in (b.urem, b.udiv))
        block = _Block(w, which, job, b.mul(first, w.field(job, JOB["block"])), group)
        height = w.field(job, JOB["in_height" if which.backward else "out_height"])
        rows = w.field(job, JOB["part_rows"])
        start = b.mul(part, rows)
        with loop_range(w, start, w.min_int(b.add(start, rows), height)) as y, loop(w, block.width) as along:
            block.write(y, along.index)
    return module


class _Axis:
    """Windows along one axis: extents of input and output, size, stride and padding."""

    def __init__(self, w: FunctionBuilder, job: ir.Value, axis: str) -> None:
        self.w = w
        extents = "height" if axis == "y" else "width"
        names = (f"in_{extents}", f"out_{extents}", f"size_{axis}", f"stride_{axis}", f"pad_{axis}")
        self.inputs, self.outputs, self.size, self.stride, self.pad = (w.field(job, JOB[n]) for n in names)

    def positions(self, output: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Start of a window, which padding may precede; its first and end position inside the map."""
        b = self.w.b
        start = b.sub(b.mul(output, self.stride), self.pad)
        end = self.w.min_int(b.add(start, self.size), self.inputs)
        return start, max_int(self.w, start, integer(0)), end

    def windows(self, position: ir.Value) -> tuple[ir.Value, ir.Value]:
        """First and end of the windows that contain a position."""
        b = self.w.b
        reached = b.add(position, self.pad)
        # not negative: of ceil((reached - size + 1) / stride), or 0
        before = max_int(self.w, b.sub(b.add(reached, self.stride), self.size), integer(0))
        end = b.add(b.udiv(reached, self.stride), integer(1))
        return b.udiv(before, self.stride), self.w.min_int(end, self.outputs)


class _Block:
    """A block of lanes: its maps and windows."""

    def __init__(
        self, w: FunctionBuilder, which: MaxPass, job: ir.Value, lane: ir.Value, group: ir.Value
    ) -> None:
        self.w, self.which = w, which
        self.y, self.x = _Axis(w, job, "y"), _Axis(w, job, "x")
        self.width = self.x.inputs if which.backward else self.x.outputs
        self.lanes = w.min_int(w.field(job, JOB["block"]), w.b.sub(w.field(job, JOB["lanes"]), lane))
        self.input = JobMap(w, job, JOB["input"], lane, group)
        self.output = JobMap(w, job, JOB["output"], lane, group)
        self.places = JobMap(w, job, JOB["places"], lane, group, I8)
        self.number = ir.IntType(8 * w.lanes.scalar_bytes)

    def write(self, y: ir.Value, x: ir.Value) -> None:
        """Compute a position of the map that is written."""
        (self._write_gradient if self.which.backward else self._write_maximum)(y, x)

    def _write_maximum(self, y: ir.Value, x: ir.Value) -> None:
        w, b = self.w, self.w.b
        (top, first_row, end_row), (left, first_column, end_column) = self.y.positions(y), self.x.positions(x)
        here = self.output.position_address(y, x)
        bytes_here = self.places.position_address(y, x)
        rows, columns = b.sub(end_row, first_row), b.sub(end_column, first_column)
        nothing = w.lanes.constant(float("-inf"))

        def body(strip: Strip, lane: ir.Value) -> None:
            count = strip.vectors
            earliest = self._number(b.sub(first_row, top), b.sub(first_column, left))
            with loop(w, rows, *[nothing] * count, *[earliest] * count) as down:
                row = b.add(first_row, down.index)
                with loop(w, columns, *down.values) as across:
                    column = b.add(first_column, across.index)
                    place = w.element_pointer(self.input.position_address(row, column), lane)
                    number = self._number(b.sub(row, top), b.sub(column, left))
                    best, at = across.values[:count], across.values[count:]
                    new = strip.load(place)
                    # the last NaN stays, as in torch
                    wins = [
                        b.or_(b.fcmp_ordered(">", one, old), b.fcmp_unordered("uno", one, one))
                        for one, old in zip(new, best, strict=True)
                    ]
                    across.next = [b.select(*one) for one in zip(wins, new, best, strict=True)]
                    across.next += [b.select(win, number, old) for win, old in zip(wins, at, strict=True)]
                down.next = across.values
            best, at = down.values[:count], down.values[count:]
            if self.which.relu:
                low = [b.fcmp_ordered("<=", one, w.lanes.zero) for one in best]
                best = [b.select(is_low, w.lanes.zero, one) for is_low, one in zip(low, best, strict=True)]
                nowhere = self._splat(integer(NOWHERE))
                at = [b.select(is_low, nowhere, one) for is_low, one in zip(low, at, strict=True)]
            strip.store(w.element_pointer(here, lane), best)
            if self.which.places:
                self._store_bytes(strip, b.gep(bytes_here, [lane], source_etype=I8), at)

        strips(w, VECTORS, self.lanes, body)

    def _write_gradient(self, y: ir.Value, x: ir.Value) -> None:
        w, b = self.w, self.w.b
        (first_row, end_row), (first_column, end_column) = self.y.windows(y), self.x.windows(x)
        here = self.input.position_address(y, x)
        rows, columns = b.sub(end_row, first_row), b.sub(end_column, first_column)

        def body(strip: Strip, lane: ir.Value) -> None:
            with loop(w, rows, *strip.zeros()) as down:
                row = b.add(first_row, down.index)
                with loop(w, columns, *down.values) as across:
                    column = b.add(first_column, across.index)
                    number = self._number(
                        b.sub(y, self.y.positions(row)[0]), b.sub(x, self.x.positions(column)[0])
                    )
                    grads = strip.load(w.element_pointer(self.output.position_address(row, column), lane))
                    place = b.gep(self.places.position_address(row, column), [lane], source_etype=I8)
                    across.next = [
                        b.fadd(total, b.select(b.icmp_unsigned("==", at, number), grad, w.lanes.zero))
                        for total, grad, at in zip(
                            across.values, grads, self._load_bytes(strip, place), strict=True
                        )
                    ]
                down.next = across.values
            strip.store(w.element_pointer(here, lane), down.values)

        strips(w, VECTORS, self.lanes, body)

    def _number(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Number of a position of a window in every lane."""
        b = self.w.b
        return self._splat(b.add(b.mul(row, self.x.size), column))

    def _splat(self, value: ir.Value) -> ir.Value:
        return self.w.splat(self.w.b.trunc(value, self.number) if self.number.width < 64 else value)

    def _store_bytes(self, strip: Strip, place: ir.Value, values: list[ir.Value]) -> None:
        """Store the low byte of every lane."""
        b, kind = self.w.b, ir.VectorType(I8, self.w.lanes.count)
        for v, value in enumerate(values):
            narrow, here = b.trunc(value, kind), self._byte_vector(place, v)
            if strip.mask is not None and v == strip.vectors - 1:
                self._call("store", VOID, [narrow, here, strip.mask])
            else:
                b.store(narrow, here, align=1)

    def _load_bytes(self, strip: Strip, place: ir.Value) -> list[ir.Value]:
        """Load one byte for every lane."""
        b, kind = self.w.b, ir.VectorType(I8, self.w.lanes.count)
        found = []
        for v in range(strip.vectors):
            here = self._byte_vector(place, v)
            if strip.mask is not None and v == strip.vectors - 1:
                nothing = ir.Constant(kind, [0] * kind.count)
                narrow = self._call("load", kind, [here, strip.mask, nothing])
            else:
                narrow = b.load(here, typ=kind, align=1)
            found.append(b.zext(narrow, ir.VectorType(self.number, kind.count)))
        return found

    def _byte_vector(self, place: ir.Value, v: int) -> ir.Value:
        return self.w.b.gep(place, [integer(v * self.w.lanes.count)], source_etype=I8)

    def _call(self, verb: str, kind: ir.Type, arguments: list[ir.Value]) -> ir.Value:
        """Call LLVM's masked load or store of bytes."""
        name = f"llvm.masked.{verb}.v{self.w.lanes.count}i8.p0"
        function = declare(self.w.function.module, name, kind, [one.type for one in arguments])
        return self.w.b.call(function, arguments)


def kernel(which: MaxPass, dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of a pass."""
    write = partial(write_max_pooling, which, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    name = ("max_pooling", *map(int, astuple(which)), dtype)
    return library.address(name, processor, write, partial(_passes_self_test, which, dtype, processor))


def _passes_self_test(which: MaxPass, dtype: str, processor: Processor, address: int) -> bool:
    """True if a kernel pools or differentiates small maps with ties, in overlapping windows, correctly."""
    images = VECTORS * processor.lanes(dtype) + 3
    windows = Window(3, 2, 1, 1), Window(2, 1)
    x = self_test_reference.sample_values(8, 5, 2, images)
    best, places = _plain(x, *windows)
    if which.relu:
        places[best <= 0], best = NOWHERE, np.maximum(best, 0)
    grad, slope = self_test_reference.sample_values(*best.shape, seed=1), np.zeros_like(x)
    for y, x_, c, n in np.argwhere(places != NOWHERE):
        down, across = divmod(int(places[y, x_, c, n]), windows[1].size)
        slope[2 * y - 1 + down, x_ + across, c, n] += grad[y, x_, c, n]
    values = (slope, grad) if which.backward else (x, best)
    expected = values[0 if which.backward else 1]
    inner, outer = (
        self_test_reference.as_map(np.full_like(one, np.nan) if one is expected else one, dtype)
        for one in values
    )
    numbers = torch.from_numpy(places if which.backward else np.zeros_like(places)).permute(3, 2, 0, 1)
    given = inner, outer, numbers if which.places else None
    _prepare(address, which, given, windows, Workers(images, dtype, processor, 1)).run(*_addresses(given))
    agrees = not which.places or np.array_equal(numbers.permute(2, 3, 1, 0).numpy(), places)
    return agrees and self_test_reference.map_agrees(inner if which.backward else outer, expected)


def _plain(x: Array, y_window: Window, x_window: Window) -> tuple[Array, NDArray[np.uint8]]:
    """Maxima of the windows of ``(y, x, channel, image)``, and the number of the first one in its window."""
    pads = [(one.pad_before, one.pad_after) for one in (y_window, x_window)]
    padded = np.pad(x, [*pads, (0, 0), (0, 0)], constant_values=-np.inf)
    view = np.lib.stride_tricks.sliding_window_view(padded, (y_window.size, x_window.size), (0, 1))
    view = view[:: y_window.stride, :: x_window.stride]
    flat = view.reshape(*view.shape[:4], -1)
    return flat.max(-1), flat.argmax(-1).astype(np.uint8)


Maps = tuple[Tensor, Tensor, Tensor | None]
"""Map or gradient that has the size of the input, of the output; bytes of positions."""


def max_pool(
    x: Tensor,
    out: Tensor,
    places: Tensor | None,
    windows: tuple[Window, Window],
    relu: bool,
    workers: Workers,
) -> None:
    """``out``: the maximum of every window along y and x, or 0 if ``relu`` and the maximum is negative.

    ``places`` receives bytes for `max_pool_gradient`. Maps have images last.
    """
    _run(MaxPass(False, places is not None, relu), (x, out, places), windows, workers)


def max_pool_gradient(
    grad: Tensor, places: Tensor, out: Tensor, windows: tuple[Window, Window], workers: Workers
) -> None:
    """``out``: for every position the sum of ``grad`` over the windows whose byte names it."""
    _run(MaxPass(True), (out, grad, places), windows, workers)


def _run(which: MaxPass, maps: Maps, windows: tuple[Window, Window], workers: Workers) -> None:
    strides = tuple((one.shape, one.stride()) for one in maps if one is not None)
    key = "max pooling", which, strides, windows, workers

    def make() -> PreparedKernel:
        code = kernel(which, workers.dtype, workers.processor)
        return _prepare(code, which, maps, windows, workers)

    cached_kernel(key, make).run(*_addresses(maps))


def _addresses(maps: Maps) -> list[int]:
    return [pointer_of(one) for one in maps if one is not None]


def _prepare(
    address: int, which: MaxPass, maps: Maps, windows: tuple[Window, Window], workers: Workers
) -> PreparedKernel:
    """Prepare a pass by the kernel at an address; it runs on the addresses of the maps."""
    inner, outer, _ = maps
    images, channels, in_height, in_width = inner.shape
    out_height, out_width = outer.shape[2:]
    strides = [required_map_strides(one) if one is not None else None for one in maps]
    dense = channels == 1 or all(one is None or one.channel == images for one in strides)
    groups, lanes = (1, channels * images) if dense else (channels, images)
    written = (in_height, in_width) if which.backward else (out_height, out_width)
    count = threads_for(inner.numel(), workers.threads)
    strip, element = VECTORS * workers.processor.lanes(workers.dtype), BYTES[workers.dtype]
    room = max(BLOCK_BYTES, CACHED_BYTES // (windows[0].size * in_width)) // element
    blocks = -(-lanes // room)
    block = -(-lanes // (blocks * strip)) * strip
    blocks = -(-lanes // block)
    parts = 1 if count == 1 else min(written[0], -(-TASKS_A_THREAD * count // (groups * blocks)))
    rows = -(-written[0] // parts)
    parts = -(-written[0] // rows)
    y, x = windows
    named = dict(zip(("input", "output", "places"), strides, strict=True))
    fields = JOB.fill(
        groups * blocks * parts,
        {"lanes": lanes, "blocks": blocks, "block": block, "parts": parts, "part_rows": rows}
        | {"in_height": in_height, "in_width": in_width, "out_height": out_height, "out_width": out_width}
        | {"size_y": y.size, "stride_y": y.stride, "pad_y": y.pad_before}
        | {"size_x": x.size, "stride_x": x.stride, "pad_x": x.pad_before},
        named,
    )
    slots = tuple(JOB[name] for name, one in named.items() if one is not None)
    return prepare_kernel(address, fields, slots, 0, (workers.dtype, count))
