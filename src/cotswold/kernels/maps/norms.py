"""Norms of filters by CPU kernels: the root of a sum of squares down the columns of a block.

Knows: the order of the sum, the cut of blocks into tasks. Does not know: tensors, fields, channels.

A block is a matrix: fan-in in rows, neurons (the lanes) in columns. Squares are summed in groups of rows, and
the groups are summed, so that the error does not grow with the fan-in. A block is read from start to end,
which is more than twice as fast as some columns at a time; the sums of its columns are in scratch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from llvmlite import ir

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import (
    JobFields,
    Strip,
    cached_kernel,
    prepare_kernel,
    strips,
    tasks,
)
from cotswold.kernels.compile.self_test_reference import ROUNDING
from cotswold.kernels.machine.execution import LINE, PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.normalisation_rows import stream
from cotswold.kernels.operands import pointer_of

VECTORS = 4
"""Vectors summed in parallel."""
GROUP = 32
"""Rows of a group; it determines the bits of the result."""
TASK_ROWS = 64
"""Rows scaled by one task."""
STREAM_BYTES = 1 << 22
"""Size of filters from which output bypasses the caches (streaming stores)."""


JOB = JobFields("filters", "output", "rows", "neurons", "chunk", "chunks", "scales", "stream")


@dataclass(frozen=True)
class Matrices:
    """Number, shape and dtype of contiguous matrices."""

    count: int
    rows: int
    neurons: int
    dtype: str


def _part(w: FunctionBuilder, job: ir.Value, number: ir.Value) -> tuple[ir.Value, ...]:
    """Rows and neurons of a matrix, those of a chunk, the task's block, and the first of its chunk."""
    b = w.b
    names = "rows", "neurons", "chunk", "chunks"
    rows, neurons, chunk, chunks = (w.field(job, JOB[name]) for name in names)
    return rows, neurons, chunk, b.udiv(number, chunks), b.mul(b.urem(number, chunks), chunk)


def write_norms(lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some neurons of one block."""
    module = ir.Module(f"norms_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, scratch):
        b = w.b
        rows, neurons, chunk, block, first = _part(w, job, number)
        source = w.element_pointer(
            w.pointer_field(job, JOB["filters"]), b.add(b.mul(b.mul(block, rows), neurons), first)
        )
        target = w.element_pointer(w.pointer_field(job, JOB["output"]), b.add(b.mul(block, neurons), first))
        lanes_here = w.min_int(chunk, b.sub(neurons, first))
        columns = _NormColumns(w, source, target, (rows, neurons, lanes_here))
        with b.if_else(b.icmp_signed("<=", lanes_here, integer(lanes.count))) as (one_vector, more):
            with one_vector:
                columns.write_one_vector()
            with more:
                columns.write_many(scratch, w.element_pointer(scratch, chunk))
    return module


class _NormColumns:
    """Neurons of a block, and the address of their norms."""

    def __init__(
        self,
        w: FunctionBuilder,
        source: ir.Value,
        target: ir.Value,
        extents: tuple[ir.Value, ir.Value, ir.Value],
    ) -> None:
        self.w, self.source, self.target = w, source, target
        self.rows, self.pitch, self.lanes = extents

    def _group(self, done: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Address of a group of rows, and its number of rows."""
        b = self.w.b
        place = self.w.element_pointer(self.source, b.mul(done, self.pitch))
        return place, self.w.min_int(integer(GROUP), b.sub(self.rows, done))

    def write_one_vector(self) -> None:
        """Compute the norms of a few neurons with sums in registers: rows follow each other quickly."""
        w = self.w
        strip = Strip(w, 1, self.lanes)
        with loop(w, self.rows, w.lanes.zero, step=GROUP) as group:
            place, count = self._group(group.index)
            with loop(w, count, place, w.lanes.zero) as row:
                here, so_far = row.values
                (value,) = strip.load(here)
                row.next = [w.element_pointer(here, self.pitch), w.fma(value, value, so_far)]
            group.next = [w.b.fadd(row.values[1], group.values[0])]
        strip.store(self.target, [w.sqrt(group.values[0])])

    def write_many(self, sums: ir.Value, totals: ir.Value) -> None:
        """Compute the norms of all neurons, row by row."""
        w, b = self.w, self.w.b

        def clear(strip: Strip, lane: ir.Value) -> None:
            for place in (sums, totals):
                strip.store_scratch(w.element_pointer(place, lane), strip.zeros())

        strips(w, VECTORS, self.lanes, clear)

        def add_sums(strip: Strip, lane: ir.Value) -> None:
            so_far, found = (strip.load_scratch(w.element_pointer(one, lane)) for one in (totals, sums))
            added = [b.fadd(one, total) for one, total in zip(found, so_far, strict=True)]
            strip.store_scratch(w.element_pointer(totals, lane), added)
            strip.store_scratch(w.element_pointer(sums, lane), strip.zeros())

        with loop(w, self.rows, step=GROUP) as group:
            first, count = self._group(group.index)
            with loop(w, count) as row:
                self._add_row(w.element_pointer(first, b.mul(row.index, self.pitch)), sums)
            strips(w, VECTORS, self.lanes, add_sums)

        def write(strip: Strip, lane: ir.Value) -> None:
            found = strip.load_scratch(w.element_pointer(totals, lane))
            strip.store(w.element_pointer(self.target, lane), [w.sqrt(one) for one in found])

        strips(w, VECTORS, self.lanes, write)

    def _add_row(self, place: ir.Value, sums: ir.Value) -> None:
        w = self.w

        def body(strip: Strip, lane: ir.Value) -> None:
            values, so_far = (
                strip.load(w.element_pointer(place, lane)),
                strip.load_scratch(w.element_pointer(sums, lane)),
            )
            found = [w.fma(one, one, total) for one, total in zip(values, so_far, strict=True)]
            strip.store_scratch(w.element_pointer(sums, lane), found)

        strips(w, VECTORS, self.lanes, body)


def kernel(dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of norms."""
    write = partial(write_norms, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(
        ("norms", dtype), processor, write, partial(_norms_pass_self_test, dtype, processor)
    )


def _norms_pass_self_test(dtype: str, processor: Processor, address: int) -> bool:
    """True if the kernel finds known norms of whole vectors and a remainder, in three groups of rows."""
    values = self_test_reference.sample_values(2, 2 * GROUP + 5, (VECTORS + 1) * processor.lanes(dtype) + 3)
    filters, expected = self_test_reference.as_tensor(values, dtype), np.sqrt((values**2).sum(1))
    found = torch.full(expected.shape, torch.nan, dtype=filters.dtype, device="cpu")
    count, rows, neurons = values.shape
    matrices = Matrices(count, rows, neurons, dtype)
    _prepare_norms(address, matrices, processor, 1).run(pointer_of(filters), pointer_of(found))
    return self_test_reference.is_close(found, expected, ROUNDING[dtype])


def norms(filters: int, out: int, matrices: Matrices, processor: Processor, threads: int) -> None:
    """Compute norms ``(block, neuron)`` of filters ``(block, row, neuron)``, by address, contiguous."""
    if matrices.count * matrices.neurons > 0:
        cached_kernel(
            ("norms", matrices, processor, threads),
            lambda: _prepare_norms(kernel(matrices.dtype, processor), matrices, processor, threads),
        ).run(filters, out)


def _prepare_norms(address: int, matrices: Matrices, processor: Processor, threads: int) -> PreparedKernel:
    """Prepare norms by the kernel at an address."""
    strip = VECTORS * processor.lanes(matrices.dtype)
    count = threads_for(matrices.count * matrices.rows * matrices.neurons, threads)
    chunks = 1 if matrices.count >= 4 * count else min(-(-matrices.neurons // strip), 4 * count)
    chunk = -(-matrices.neurons // (chunks * strip)) * strip
    chunks = -(-matrices.neurons // chunk)
    fields = JOB.fill(
        matrices.count * chunks,
        {"rows": matrices.rows, "neurons": matrices.neurons, "chunk": chunk, "chunks": chunks},
    )
    return prepare_kernel(
        address, fields, (JOB["filters"], JOB["output"]), 2 * chunk, (matrices.dtype, count)
    )


def write_scaled(lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task scales some rows of one block by a scale per neuron."""
    module = ir.Module(f"scaled_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        b = w.b
        rows, neurons, chunk, block, first = _part(w, job, number)
        offset = b.mul(b.add(b.mul(block, rows), first), neurons)
        source, target = (
            w.element_pointer(w.pointer_field(job, one), offset) for one in (JOB["filters"], JOB["output"])
        )
        scales = w.element_pointer(w.pointer_field(job, JOB["scales"]), b.mul(block, neurons))
        past = b.icmp_signed("!=", w.field(job, JOB["stream"]), integer(0))
        with loop(w, w.min_int(chunk, b.sub(rows, first))) as row:
            begin = b.mul(row.index, neurons)

            def body(strip: Strip, lane: ir.Value) -> None:
                place = b.add(begin, lane)
                values, factors = (
                    strip.load(w.element_pointer(source, place)),
                    strip.load(w.element_pointer(scales, lane)),
                )
                found = [b.fmul(one, factor) for one, factor in zip(values, factors, strict=True)]
                to = w.element_pointer(target, place)
                if strip.mask is not None:
                    strip.store(to, found)
                    return
                with b.if_else(past) as (streamed, kept):
                    with streamed:
                        stream(strip, to, found)
                    with kept:
                        strip.store(to, found)

            strips(w, VECTORS, neurons, body)
        b.fence("seq_cst")
    return module


def scaled_kernel(dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of scaled filters."""
    write = partial(write_scaled, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(
        ("scaled", dtype), processor, write, partial(_scaled_passes_self_test, dtype, processor)
    )


def _scaled_passes_self_test(dtype: str, processor: Processor, address: int) -> bool:
    """True if the kernel finds known products, with and without streaming stores."""
    neurons = (VECTORS + 1) * processor.lanes(dtype)
    for part, past in ((3, False), (0, True)):
        values = self_test_reference.sample_values(2, TASK_ROWS + 3, neurons + part)
        scales = self_test_reference.sample_values(2, neurons + part, seed=1)
        filters, factors = (self_test_reference.as_tensor(one, dtype) for one in (values, scales))
        found = torch.full_like(filters, torch.nan)
        matrices = Matrices(2, TASK_ROWS + 3, neurons + part, dtype)
        addresses = pointer_of(filters), pointer_of(factors), pointer_of(found)
        _scaling(address, matrices, 1, past and pointer_of(found) % LINE == 0).run(*addresses)
        if not self_test_reference.is_close(found, values * scales[:, None]):
            return False
    return True


def scaled(
    filters: int, scales: int, out: int, matrices: Matrices, processor: Processor, threads: int
) -> None:
    """Scale filters ``(block, row, neuron)`` by ``(block, neuron)``; three addresses, all contiguous."""
    numbers, each = matrices.count * matrices.rows * matrices.neurons, BYTES[matrices.dtype]
    if numbers == 0:
        return
    whole = out % LINE == 0 and matrices.neurons * each % LINE == 0
    count, stream = threads_for(numbers, threads), whole and numbers * each >= STREAM_BYTES
    cached_kernel(
        ("scaled", matrices, processor, count, stream),
        lambda: _scaling(scaled_kernel(matrices.dtype, processor), matrices, count, stream),
    ).run(filters, scales, out)


def _scaling(address: int, matrices: Matrices, threads: int, stream: bool) -> PreparedKernel:
    """Prepare scaled filters by the kernel at an address; it runs on filters, scales and output."""
    chunks = -(-matrices.rows // TASK_ROWS)
    fields = JOB.fill(
        matrices.count * chunks,
        {"rows": matrices.rows, "neurons": matrices.neurons, "chunk": TASK_ROWS, "chunks": chunks}
        | {"stream": stream},
    )
    return prepare_kernel(
        address, fields, (JOB["filters"], JOB["scales"], JOB["output"]), 0, (matrices.dtype, threads)
    )
