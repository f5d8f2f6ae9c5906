"""Counts of responses by the threshold that they reach, for very many neurons at once.

Knows: the exact comparison with a threshold, the layout of counts. Does not know: networks, what slots mean.

A task is a group of neurons, so that threads never share a count. Each vector of responses is compared in
float64; then each of them adds 1 to the count of its level and of its image's slot.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from cotswold.kernels.compile import library
from cotswold.kernels.compile.emit import I32, I64, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import JobFields, cached_kernel, prepare_kernel, tasks
from cotswold.kernels.machine.execution import PreparedKernel
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products.problem import processor_of

SLOTS = 16
"""Slots of a level: their counts fill a cache line."""
LANES = 8
"""Responses compared at a time, as float64, on every processor."""
NEURONS = 64
"""Neurons of a task."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Counts = NDArray[np.int32]


OPERANDS = "responses", "least", "widths", "counts", "slots", "images"
JOB = JobFields(*OPERANDS, "neurons", "pitch", "thresholds")


def empty_counts(neurons: int, thresholds: int) -> Counts:
    """Return counts of 0, ``(neuron, level, slot)``; lanes without an image count in one more level."""
    return np.zeros((neurons, thresholds + 1, SLOTS), np.int32)


def count_levels(
    responses: Floats,
    least: Doubles,
    widths: Doubles,
    slots: Counts,
    counts: Counts,
    threads: int,
    address: int | None = None,
) -> None:
    """Count each response at the highest threshold that it reaches, in the slot of its image.

    ``responses`` are ``(neuron, image)`` with contiguous images. ``widths`` are the lengths of the neurons'
    ranges; responses of an infinite width only reach the lowest threshold. ``address`` is a kernel in its
    self-test.
    """
    address = kernel(processor_of()) if address is None else address
    (neurons, images), pitch, thresholds = responses.shape, responses.strides[0] // 4, counts.shape[1] - 1
    padded = np.zeros(-(-images // LANES) * LANES, np.int32)
    padded[:images] = slots
    cached_kernel(
        ("histogram", address, neurons, pitch, thresholds, threads),
        lambda: _prepared(address, neurons, pitch, thresholds, threads),
    ).run(*(one.ctypes.data for one in (responses, least, widths, counts, padded)), images)


def kernel(processor: Processor) -> int:
    """Return the address of the kernel."""
    write = partial(write_histogram, processor.triple)
    return library.address(("histogram",), processor, write, _passes_self_test)


def _prepared(address: int, neurons: int, pitch: int, thresholds: int, threads: int) -> PreparedKernel:
    fields = JOB.fill(-(-neurons // NEURONS), {"neurons": neurons, "pitch": pitch, "thresholds": thresholds})
    return prepare_kernel(address, fields, JOB.places(*OPERANDS), 0, ("float64", threads))


def write_histogram(triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is a group of neurons."""
    module, lanes = ir.Module("histogram"), Lanes("float64", LANES)
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        b = w.b
        first = b.mul(number, integer(NEURONS))
        here = w.min_int(integer(NEURONS), b.sub(w.field(job, JOB["neurons"]), first))
        with loop(w, here) as turn:
            _write_neuron(w, job, b.add(first, turn.index))
    return module


def _write_neuron(w: FunctionBuilder, job: ir.Value, neuron: ir.Value) -> None:
    """Count the responses of one neuron, a vector at a time."""
    b, vector = w.b, ir.VectorType(I32, LANES)
    narrow = w.with_lanes(Lanes("float32", LANES))
    least, width = (
        w.load_broadcast(w.element_pointer(w.pointer_field(job, field), neuron))
        for field in (JOB["least"], JOB["widths"])
    )
    thresholds, images = w.field(job, JOB["thresholds"]), w.field(job, JOB["images"])
    steps = w.splat(b.sitofp(b.sub(thresholds, integer(1)), w.lanes.scalar))
    inverse = b.fdiv(w.lanes.constant(1.0), width)
    responses = narrow.element_pointer(
        w.pointer_field(job, JOB["responses"]), b.mul(neuron, w.field(job, JOB["pitch"]))
    )
    size = b.mul(b.add(thresholds, integer(1)), integer(SLOTS))
    counts = b.gep(w.pointer_field(job, JOB["counts"]), [b.mul(neuron, size)], source_etype=I32)
    outside = w.splat(b.trunc(thresholds, I32))
    with loop(w, images, step=LANES) as turn:
        mask = w.lane_mask(b.sub(images, turn.index))
        values = narrow.masked_load(narrow.element_pointer(responses, turn.index), mask)
        scaled = b.fmul(steps, b.fsub(b.fpext(values, w.lanes.type), least))
        level = b.fptosi(_level(w, scaled, width, inverse, steps), vector)
        level = b.select(mask, level, outside)
        place = b.gep(w.pointer_field(job, JOB["slots"]), [turn.index], source_etype=I32)
        slots = b.load(place, typ=vector, align=4)
        index = b.add(b.mul(level, ir.Constant(vector, [SLOTS] * LANES)), slots)
        for number in range(LANES):
            place = b.sext(b.extract_element(index, integer(number)), I64)
            target = b.gep(counts, [place], source_etype=I32)
            b.store(b.add(b.load(target, typ=I32), ir.Constant(I32, 1)), target)


def _level(
    w: FunctionBuilder, scaled: ir.Value, width: ir.Value, inverse: ir.Value, steps: ir.Value
) -> ir.Value:
    """Greatest k from 0 to ``steps`` with ``scaled >= k width``: an estimate, corrected by comparisons."""
    b, one, zero = w.b, w.lanes.constant(1.0), w.lanes.zero
    estimate = w.minimum(w.maximum(zero, b.fmul(scaled, inverse)), steps)
    k = b.sitofp(b.fptosi(estimate, ir.VectorType(I32, LANES)), w.lanes.type)
    above = b.fadd(k, one)
    more = b.and_(b.fcmp_ordered(">=", scaled, b.fmul(above, width)), b.fcmp_ordered("<=", above, steps))
    fewer = b.and_(b.fcmp_ordered("<", scaled, b.fmul(k, width)), b.fcmp_ordered(">", k, zero))
    return b.fsub(b.select(more, above, k), b.select(fewer, one, zero))


def _passes_self_test(address: int) -> bool:
    """True if a kernel counts like NumPy: responses on thresholds, between them, outside; a point range."""
    thresholds = 5
    responses = np.concatenate([np.arange(-3, 18), [0.5, 3.9, 4.1]]).astype(np.float32)[None].repeat(2, 0)
    least, widths, counts = np.zeros(2), np.array([16.0, np.inf]), empty_counts(2, thresholds)
    slots = (np.arange(23) * 5 % SLOTS).astype(np.int32)
    count_levels(responses[:, :-1], least, widths, slots, counts, 1, address)
    expected = empty_counts(2, thresholds)
    np.add.at(expected[0], (np.clip(responses[0, :-1] // 4, 0, thresholds - 1).astype(int), slots), 1)
    np.add.at(expected[1, 0], slots, 1)
    return np.array_equal(counts[:, :-1], expected[:, :-1])
