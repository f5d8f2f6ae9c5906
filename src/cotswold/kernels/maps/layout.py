"""Conversion between images first (other code) and images last (kernels).

Knows: squares of vectors transposed in registers, the cut of positions into tasks. Does not know: the
contents of a map.

A map with images first is a dense matrix for each channel, or one for all channels if they are contiguous:
images are its rows and positions ``(y, x)`` its columns. A map with images last is the transposed matrix,
with rows placed by the map's strides.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from llvmlite import ir
from numpy.typing import NDArray
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import JobFields, cached_kernel, prepare_kernel, tasks
from cotswold.kernels.machine.execution import PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.transpose import transposed
from cotswold.kernels.operands import MapStrides, name_of, pointer_of, required_map_strides

BLOCK = 64
"""Positions of a task: several cache lines of every image, so that no page or line is read in part."""
TABLE_MOST = 256
"""Positions of a channel up to which contiguous channels share one table of all positions."""


JOB = JobFields(
    *("images", "positions", "places", "last", "first", "pitch", "blocks", "first_channel", "last_channel")
)


def write_copy(lanes: Lanes, triple: str, to_last: bool) -> ir.Module:
    """Return a module with ``work(job)``; a task is some positions of a channel of all images."""
    module = ir.Module(f"order_{lanes.dtype}_{lanes.count}_{int(to_last)}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        b = w.b
        images, positions = w.field(job, JOB["images"]), w.field(job, JOB["positions"])
        blocks = w.field(job, JOB["blocks"])
        channel, begin = b.udiv(number, blocks), b.mul(b.urem(number, blocks), integer(BLOCK))
        stop = w.min_int(b.add(begin, integer(BLOCK)), positions)
        square = _Square(w, job, channel, to_last)
        with (
            loop(w, images, step=lanes.count) as down,
            loop(w, b.sub(stop, begin), step=lanes.count) as along,
        ):
            first = b.add(begin, along.index)
            whole = b.and_(
                b.icmp_signed("<=", b.add(down.index, integer(lanes.count)), images),
                b.icmp_signed("<=", b.add(first, integer(lanes.count)), positions),
            )
            with b.if_else(whole) as (full, part):
                with full:
                    square.write(down.index, first, False)
                with part:
                    square.write(down.index, first, True)
    return module


class _Square:
    """A square of images and positions, one vector wide."""

    def __init__(self, w: FunctionBuilder, job: ir.Value, channel: ir.Value, to_last: bool) -> None:
        self.w, self.to_last = w, to_last
        self.images, self.positions = w.field(job, JOB["images"]), w.field(job, JOB["positions"])
        self.offsets = w.pointer_field(job, JOB["places"])
        self.last, self.first = (
            w.element_pointer(w.pointer_field(job, one), w.b.mul(channel, w.field(job, pitch)))
            for one, pitch in ((JOB["last"], JOB["last_channel"]), (JOB["first"], JOB["first_channel"]))
        )
        self.pitch = w.field(job, JOB["pitch"])

    def write(self, image: ir.Value, position: ir.Value, partly: bool) -> None:
        """Transpose one square; ``partly`` if some of its images or positions do not exist."""
        w, b = self.w, self.w.b
        rows = []
        for i in range(w.lanes.count):
            here = self._limit_index(image, i, self.images, partly)
            rows.append(w.element_pointer(self.first, b.add(b.mul(here, self.pitch), position)))
        columns = []
        for i in range(w.lanes.count):
            here = self._limit_index(position, i, self.positions, partly)
            columns.append(
                w.element_pointer(w.element_pointer(self.last, w.field(self.offsets, here)), image)
            )
        sources, targets = (rows, columns) if self.to_last else (columns, rows)
        if not partly:
            for place, value in zip(targets, transposed(w, [w.load(one) for one in sources]), strict=True):
                w.store(place, value)
            return
        across, down = (
            (b.sub(self.positions, position), b.sub(self.images, image))
            if self.to_last
            else (b.sub(self.images, image), b.sub(self.positions, position))
        )
        read, written = w.lane_mask(across), w.lane_mask(down)
        values = transposed(w, [w.masked_load(one, read) for one in sources])
        for i, (place, value) in enumerate(zip(targets, values, strict=True)):
            there = b.icmp_signed("<", integer(i), across)
            w.masked_store(place, value, b.and_(written, w.splat(there)))

    def _limit_index(self, first: ir.Value, i: int, count: ir.Value, partly: bool) -> ir.Value:
        """Return index ``first + i``, limited to the last one."""
        here = self.w.b.add(first, integer(i))
        return self.w.min_int(here, self.w.b.sub(count, integer(1))) if partly else here


def kernel(dtype: str, processor: Processor, to_last: bool) -> int:
    """Return the address of the kernel."""
    name = "images_last" if to_last else "images_first"
    write = partial(write_copy, Lanes(dtype, processor.lanes(dtype)), processor.triple, to_last)
    return library.address(
        (name, dtype), processor, write, partial(_passes_self_test, dtype, processor, to_last)
    )


def _passes_self_test(dtype: str, processor: Processor, to_last: bool, address: int) -> bool:
    """True if the kernel copies a map of whole squares and remainders correctly."""
    side = processor.lanes(dtype) + 3
    values = np.arange(3.0 * side * BLOCK).reshape(BLOCK // 2, 2, 3, side)  # y, x, channel, image
    first, last = (
        self_test_reference.as_tensor(values.transpose(3, 2, 0, 1), dtype),
        self_test_reference.as_tensor(values, dtype),
    )
    found = torch.full_like(last if to_last else first, torch.nan)
    first, last = (first, found) if to_last else (found, last)
    view = last.permute(3, 2, 0, 1)
    _prepare_copy(address, first, required_map_strides(view), 1).run(pointer_of(last), pointer_of(first))
    return torch.equal(last.permute(3, 2, 0, 1), first)


def _position_offsets(channels: int, height: int, width: int, last: MapStrides) -> NDArray[np.int64]:
    """Offsets of positions in the order of images first, in a map with images last."""
    c, y, x = np.ogrid[:channels, :height, :width]
    return np.ascontiguousarray((y * last.row + x * last.column + c * last.channel).ravel(), np.int64)


def copy(first: Tensor, last: Tensor, to_last: bool, processor: Processor, threads: int) -> None:
    """Copy a map from images first to images last, or back; neither images nor positions may be empty."""
    key = ("layout", to_last, first.shape, first.stride(), last.stride(), first.dtype, processor, threads)
    cached_kernel(key, lambda: _prepare(first, last, to_last, processor, threads)).run(
        pointer_of(last), pointer_of(first)
    )


def _prepare(
    first: Tensor, last: Tensor, to_last: bool, processor: Processor, threads: int
) -> PreparedKernel:
    code = kernel(name_of(first.dtype), processor, to_last)
    return _prepare_copy(code, first, required_map_strides(last), threads)


def _prepare_copy(code: int, first: Tensor, last: MapStrides, threads: int) -> PreparedKernel:
    """Prepare a copy by the kernel at an address; it runs on the map of images last, then the other."""
    images, channels, height, width = first.shape
    area, (pitch, channel) = height * width, first.stride()[:2]
    one_table = channel == area < TABLE_MOST
    groups, alike = (1, channels) if one_table else (channels, 1)
    places = _position_offsets(alike, height, width, last)
    blocks = -(-len(places) // BLOCK)
    count = threads_for(images * groups * len(places), threads)
    fields = JOB.fill(
        groups * blocks,
        {"images": images, "positions": len(places), "places": places.ctypes.data, "pitch": pitch}
        | {"blocks": blocks, "first_channel": channel, "last_channel": last.channel},
    )
    return prepare_kernel(code, fields, (JOB["last"], JOB["first"]), 0, (name_of(first.dtype), count), places)
