"""Dropout by CPU kernels: one pass over a dense tensor that computes the mask on the way.

Knows: the hash of `dropout_mask`, the layout of a dense tensor. Does not know: autograd, random generators.

The place of an element is its logical index, so that the mask depends neither on the layout nor on threads or
vectors. The tensor is read as rows of adjacent elements, whose places are an arithmetic progression.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import torch
from llvmlite import ir
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer
from cotswold.kernels.compile.jobs import (
    JobFields,
    Strip,
    bits,
    cached_kernel,
    loop_range,
    number_field,
    prepare_kernel,
    strips,
    tasks,
)
from cotswold.kernels.dropout_mask import Mask
from cotswold.kernels.machine.execution import PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.tasks import Workers
from cotswold.kernels.operands import pointer_of
from cotswold.kernels.warp.images import GOLDEN
from cotswold.kernels.warp.vectors import I32Vectors

VECTORS = 4
"""Vectors computed at a time."""
TASK_ELEMENTS = 1 << 13
"""Elements of a task, and of a row if all elements of a tensor are in order."""
JOB = JobFields(
    *("input", "output", "key", "kept", "scale"),
    *("elements", "rows", "task_rows", "size", "step", "inner", "inner_step", "outer_step"),
)
OPERAND_SLOTS = tuple(JOB[name] for name in ("input", "output", "key", "kept", "scale"))


class AdjacentRows(NamedTuple):
    """A dense tensor as rows of adjacent elements.

    Row ``r`` has ``size`` elements. Its first place is ``r // inner * outer_step + r % inner * inner_step``;
    places of adjacent elements differ by ``step``.
    """

    size: int
    step: int
    inner: int
    inner_step: int
    outer_step: int


@lru_cache(maxsize=256)
def dense_rows(shape: tuple[int, ...], strides: tuple[int, ...]) -> AdjacentRows | None:
    """Return the rows of a tensor; None unless it is dense with at most two dimensions around a row."""
    places = [1]
    for size in reversed(shape[1:]):
        places.append(places[-1] * size)
    found: list[tuple[int, int]] = []  # size and step of dimensions, from adjacent elements outwards
    adjacent = 1
    for stride, size, step in sorted(zip(strides, shape, reversed(places), strict=True)):
        if size == 1:
            continue
        if stride != adjacent:
            return None
        adjacent *= size
        if found and step == found[-1][0] * found[-1][1]:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, step))
    if len(found) > 3:
        return None
    if len(found) < 2:
        return AdjacentRows(TASK_ELEMENTS, 1, 1 << 32, TASK_ELEMENTS, 0)
    (size, step), (inner, inner_step), (_, outer_step) = *found, *[(1, 0)] * (3 - len(found))
    return AdjacentRows(size, step, inner, inner_step, outer_step)


def write_dropout(lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some rows."""
    module = ir.Module(f"dropout_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        first = w.b.mul(number, w.field(job, JOB["task_rows"]))
        stop = w.min_int(w.b.add(first, w.field(job, JOB["task_rows"])), w.field(job, JOB["rows"]))
        factors = _Factors(w, job)
        with loop_range(w, first, stop) as row:
            _write_row(w, job, factors, row)
    return module


def _write_row(w: FunctionBuilder, job: ir.Value, factors: _Factors, row: ir.Value) -> None:
    b, inner = w.b, w.field(job, JOB["inner"])
    start = b.mul(row, w.field(job, JOB["size"]))
    length = w.min_int(w.field(job, JOB["size"]), b.sub(w.field(job, JOB["elements"]), start))
    place = b.add(
        b.mul(b.udiv(row, inner), w.field(job, JOB["outer_step"])),
        b.mul(b.urem(row, inner), w.field(job, JOB["inner_step"])),
    )
    source, target = (
        w.element_pointer(w.pointer_field(job, JOB[each]), start) for each in ("input", "output")
    )

    def body(strip: Strip, lane: ir.Value) -> None:
        values = strip.load(w.element_pointer(source, lane))
        found = []
        for vector, value in enumerate(values):
            index = b.add(lane, integer(vector * w.lanes.count))
            found.append(b.fmul(value, factors.vector(b.add(place, b.mul(index, factors.step)))))
        strip.store(w.element_pointer(target, lane), found)

    strips(w, VECTORS, length, body)


class _Factors:
    """The factors of a vector's elements: the scale, or 0."""

    def __init__(self, w: FunctionBuilder, job: ir.Value) -> None:
        self.w, self.words = w, I32Vectors(w)
        key = w.field(job, JOB["key"])
        self.low, self.high = (self.words.splat(half) for half in (key, w.b.lshr(key, integer(32))))
        self.kept = self.words.splat(w.field(job, JOB["kept"]))
        self.scale = number_field(w, job, JOB["scale"])
        self.step = w.field(job, JOB["step"])
        lanes = ir.Constant(self.words.type, list(range(w.lanes.count)))
        self.steps = w.b.mul(lanes, self.words.splat(w.b.mul(self.step, integer(GOLDEN))))

    def vector(self, place: ir.Value) -> ir.Value:
        """Return the factors of a vector whose first element has this place."""
        b, words = self.w.b, self.words
        state = b.add(words.splat(b.mul(place, integer(GOLDEN))), self.steps)
        state = words.mixed(b.add(words.mixed(b.xor(state, self.low)), self.high))
        return b.select(b.icmp_unsigned("<", state, self.kept), self.scale, self.w.lanes.zero)


def kernel(dtype: str, processor: Processor) -> int:
    """Return the address of the kernel."""
    write = partial(write_dropout, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(("dropout", dtype), processor, write, partial(_passes_self_test, dtype, processor))


def drop(x: Tensor, mask: Mask, workers: Workers) -> Tensor:
    """Return ``mask.apply(x)``; a dense tensor keeps its layout."""
    return _run(kernel(workers.dtype, workers.processor), x, mask, workers)


def _run(address: int, x: Tensor, mask: Mask, workers: Workers) -> Tensor:
    rows = dense_rows(x.shape, x.stride())
    if rows is None:
        x = x.contiguous()
        rows = dense_rows(x.shape, x.stride())
        assert rows is not None, "a contiguous tensor is dense"
    out, elements = torch.empty_like(x), x.numel()
    key = "dropout", address, rows, elements, workers.threads
    cached_kernel(key, partial(_prepare, address, rows, elements, workers)).run(
        *(pointer_of(x), pointer_of(out), mask.key, mask.kept, bits(mask.scale))
    )
    return out


def _prepare(address: int, rows: AdjacentRows, elements: int, workers: Workers) -> PreparedKernel:
    count = -(-elements // rows.size)
    task_rows = max(1, TASK_ELEMENTS // rows.size)
    numbers = {"elements": elements, "rows": count, "task_rows": task_rows, **rows._asdict()}
    fields, threads = JOB.fill(-(-count // task_rows), numbers), threads_for(elements, workers.threads)
    return prepare_kernel(address, fields, OPERAND_SLOTS, 0, (workers.dtype, threads))


def _passes_self_test(dtype: str, processor: Processor, address: int) -> bool:
    """True if a kernel has the bits of NumPy for a row, and for maps with the images last."""
    images = VECTORS * processor.lanes(dtype) + 3
    mask, workers = Mask.of(0x123456789ABCDEF, 0.25), Workers(images, dtype, processor, 1)
    x = self_test_reference.as_map(self_test_reference.sample_values(3, 2, 5, images), dtype)
    return all(
        _run(address, each, mask, workers).numpy().tobytes() == mask.apply(each).numpy().tobytes()
        for each in (x, x.contiguous())
    )
