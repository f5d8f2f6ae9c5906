"""Norms of filters on the kernels of this processor: the root of a sum of squares down a block's columns.

Knows: the order of the sum, how blocks are cut into tasks. Does not know: tensors, fields, channels.

A block is a matrix, the fan-in in its rows and the neurons, which are the lanes, in its columns. Squares
are summed in groups of so many rows, and the groups are summed: the error does not grow with the fan-in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from llvmlite import ir

from cotswold.kernels import library
from cotswold.kernels.emit import Lanes, integer, loop
from cotswold.kernels.machine import Machine
from cotswold.kernels.map_tasks import BYTES, Head, Strip, perform, root, strips, tasks

VECTORS = 8
"""Vectors that are summed side by side."""
GROUP = 32
"""Rows of a group; part of what the result is, to the bit."""
AHEAD_BYTES = 1 << 11
"""How far ahead filters are asked for."""
ALONE = 1 << 14
"""Weights for which waking other threads does not pay."""


class Norm(IntEnum):
    """The fields of a job, after those of every job."""

    FILTERS = Head.FIELDS
    OUTPUT = 6
    ROWS = 7
    NEURONS = 8
    CHUNK = 9
    CHUNKS = 10
    AHEAD = 11
    FIELDS = 12


@dataclass(frozen=True)
class Blocks:
    """So many matrices, one after the other, of a dtype."""

    count: int
    rows: int
    neurons: int
    dtype: str


def write_norms(lanes: Lanes, triple: str) -> ir.Module:
    """A module with ``work(job)``: tasks of one block and some neurons, until none is left."""
    module = ir.Module(f"norms_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        b = w.b
        rows, neurons = w.field(job, Norm.ROWS), w.field(job, Norm.NEURONS)
        chunks, chunk = w.field(job, Norm.CHUNKS), w.field(job, Norm.CHUNK)
        block, first = b.udiv(number, chunks), b.mul(b.urem(number, chunks), chunk)
        source = w.at(w.pointer_field(job, Norm.FILTERS), b.add(b.mul(b.mul(block, rows), neurons), first))
        target = w.at(w.pointer_field(job, Norm.OUTPUT), b.add(b.mul(block, neurons), first))
        ahead = w.field(job, Norm.AHEAD)
        groups = b.sdiv(b.add(rows, integer(GROUP - 1)), integer(GROUP))

        def body(strip: Strip, lane: ir.Value) -> None:
            with loop(w, groups, *strip.zeros()) as outer:
                done = b.mul(outer.index, integer(GROUP))
                here = w.at(source, b.add(b.mul(done, neurons), lane))
                count = w.least(integer(GROUP), b.sub(rows, done))
                with loop(w, count, here, *strip.zeros()) as inner:
                    place, *sums = inner.values
                    strip.fetch(w.at(place, ahead))
                    values = strip.read(place)
                    inner.next = [
                        w.at(place, neurons),
                        *(w.multiply_add(one, one, total) for one, total in zip(values, sums, strict=True)),
                    ]
                outer.next = [
                    b.fadd(one, total) for one, total in zip(inner.values[1:], outer.values, strict=True)
                ]
            strip.write(w.at(target, lane), [root(w, one) for one in outer.values])

        strips(w, VECTORS, w.least(chunk, b.sub(neurons, first)), body)
    return module


def kernel(dtype: str, processor: Machine) -> int:
    """The address of the kernel."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    return library.address(("norms", dtype), processor, lambda: write_norms(lanes, processor.triple))


def norms(filters: int, out: int, blocks: Blocks, processor: Machine, threads: int) -> None:
    """The norms ``(block, neuron)`` of filters ``(block, row, neuron)``: two addresses, both contiguous."""
    if blocks.count * blocks.neurons == 0:
        return
    strip = VECTORS * processor.lanes(blocks.dtype)
    count = 1 if blocks.count * blocks.rows * blocks.neurons < ALONE else threads
    chunks = 1 if blocks.count >= 4 * count else min(-(-blocks.neurons // strip), 4 * count)
    chunk = -(-blocks.neurons // (chunks * strip)) * strip
    chunks = -(-blocks.neurons // chunk)
    fields = np.zeros(Norm.FIELDS, np.int64)
    fields[Head.TASKS] = blocks.count * chunks
    fields[Norm.FILTERS :] = (
        *(filters, out, blocks.rows, blocks.neurons, chunk, chunks),
        max(1, AHEAD_BYTES // BYTES[blocks.dtype] // blocks.neurons) * blocks.neurons,
    )
    perform(kernel(blocks.dtype, processor), fields, 0, blocks.dtype, count)
