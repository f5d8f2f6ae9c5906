"""Element-by-element passes over maps between the products of a step, with their sums, in one read and write.

Knows: the order of a sum, the cut of a map into tasks, the passes of a step. Does not know: tensors' shapes
beyond their strides, what a step minimises.

A sum has one chain for each of 32 adjacent images (16 in float64). A chain runs over the rows of a group and
is then added to a float64 sum; a task is a row of the map. So neither threads nor vectors change a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import (
    DOUBLE,
    JobFields,
    bits,
    cached_kernel,
    number_field,
    prepare_kernel,
    tasks,
)
from cotswold.kernels.compile.self_test_reference import Array
from cotswold.kernels.machine.execution import PreparedKernel, threads_for_cheap_pass
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.tasks import Workers
from cotswold.kernels.operands import pointer_of, required_map_strides

CHAINS = {"float32": 32, "float64": 16}
"""Chains of a sum."""
GROUP_ELEMENTS = 1 << 13
"""Elements of a group of rows: at most 256 terms of a chain in float32."""

Values = list[ir.Value]


@dataclass(frozen=True)
class PassVectors:
    """Vectors that a pass computes with: of maps, scales, numbers and the sums so far."""

    maps: Values
    scales: Values
    numbers: Values
    sums: Values


Results = tuple[dict[int, ir.Value], Values]
"""Vectors to write, by map, and the sums."""
Plain = Callable[[list[Array], list[Array], list[float]], tuple[dict[int, Array], list[Array]]]


@dataclass(frozen=True)
class Pass:
    """A pass, as code and by NumPy (``plain`` returns the written maps, and the terms of the sums)."""

    name: str
    body: Callable[[FunctionBuilder, PassVectors], Results]
    plain: Plain
    maps: int
    scales: int = 0
    """Scales have one value a position and channel."""
    numbers: int = 0
    sums: int = 0


def _dot(w: FunctionBuilder, v: PassVectors) -> Results:
    return {}, [w.fma(v.maps[0], v.maps[1], v.sums[0])]


def _total(w: FunctionBuilder, v: PassVectors) -> Results:
    return {}, [w.b.fadd(v.sums[0], v.maps[0])]


def _subtract(w: FunctionBuilder, v: PassVectors) -> Results:
    (decoded, batch), (gain, factor) = v.maps, v.numbers
    rest = w.b.fsub(decoded, w.b.fmul(batch, gain))
    pairs = (decoded, batch), (decoded, decoded), (rest, rest)
    found = [w.fma(*pair, so_far) for pair, so_far in zip(pairs, v.sums, strict=True)]
    return {0: w.b.fmul(rest, factor)}, found


def _scale(w: FunctionBuilder, v: PassVectors) -> Results:
    z = w.b.fmul(v.maps[0], v.scales[0])
    return {0: z, 1: w.b.fmul(z, v.scales[1])}, []


def _gradient(w: FunctionBuilder, v: PassVectors) -> Results:
    added = w.b.fadd(v.maps[0], w.b.fmul(v.maps[1], v.scales[0]))
    return {0: w.b.fmul(added, v.numbers[0])}, []


def _penalty(w: FunctionBuilder, v: PassVectors) -> Results:
    z, (epsilon, weight) = v.maps[0], v.numbers
    pooled = w.sqrt(w.fma(z, z, epsilon))
    return {1: w.b.fmul(w.b.fdiv(weight, pooled), z)}, [w.b.fadd(v.sums[0], pooled)]


DOT = Pass("dot", _dot, lambda m, s, n: ({}, [m[0] * m[1]]), 2, sums=1)
"""``<a, b>``."""
TOTAL = Pass("total", _total, lambda m, s, n: ({}, [m[0]]), 1, sums=1)
"""The sum of a map."""
SUBTRACT = Pass(
    "subtract",
    _subtract,
    lambda m, s, n: (
        {0: n[1] * (m[0] - n[0] * m[1])},
        [m[0] * m[1], m[0] ** 2, (m[0] - n[0] * m[1]) ** 2],
    ),
    maps=2,
    numbers=2,
    sums=3,
)
"""``<d, x>``, ``<d, d>``, ``<r, r>`` of ``r = d - gain x``; d becomes ``factor r``."""
SCALE = Pass("scale", _scale, lambda m, s, n: ({0: s[0] * m[0], 1: s[0] * s[1] * m[0]}, []), maps=2, scales=2)
"""y becomes ``z = s y``; the second map becomes ``u z``."""
GRADIENT = Pass(
    "gradient", _gradient, lambda m, s, n: ({0: n[0] * (m[0] + s[0] * m[1])}, []), 2, scales=1, numbers=1
)
"""The first map becomes ``factor (a + u b)``."""
PENALTY = Pass(
    "penalty",
    _penalty,
    lambda m, s, n: ({1: n[1] * m[0] / np.sqrt(m[0] ** 2 + n[0])}, [np.sqrt(m[0] ** 2 + n[0])]),
    maps=2,
    numbers=2,
    sums=1,
)
"""The sum of ``p = sqrt(z² + ε)``; the second map becomes ``weight z / p``."""


@lru_cache
def _names(kind: Pass) -> tuple[JobFields, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a job, and the names of those of its maps, scales and numbers.

    ``line`` and ``group`` are the rows ``(x, channel)`` of a task and of a group, ``sums`` is an address.
    """
    maps, scales, numbers = (
        tuple(f"{name}{i}" for i in range(count))
        for name, count in (("map", kind.maps), ("scale", kind.scales), ("number", kind.numbers))
    )
    return JobFields("images", "line", "group", "sums", *scales, *numbers, maps=maps), maps, scales, numbers


def write_pass(kind: Pass, lanes: Lanes, triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is a row of the map."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    with tasks(module, lanes) as (w, job, number, _):
        _Task(kind, w, job, number).write()
    return module


class _Task:
    """The code of one row of a map."""

    def __init__(self, kind: Pass, w: FunctionBuilder, job: ir.Value, number: ir.Value) -> None:
        self.kind, self.w, self.number = kind, w, number
        b, (fields, maps, scales, numbers) = w.b, _names(kind)
        self.sums = w.pointer_field(job, fields["sums"])
        self.vectors = CHAINS[w.lanes.dtype] // w.lanes.count
        self.images, self.line, self.group = (
            w.field(job, place) for place in fields.places("images", "line", "group")
        )
        self.maps = [
            w.element_pointer(w.pointer_field(job, place), b.mul(number, w.field(job, place + 1)))
            for place in fields.places(*maps)
        ]
        self.pitches = [w.field(job, place + 3) for place in fields.places(*maps)]
        self.scales = [
            w.element_pointer(w.pointer_field(job, place), b.mul(number, self.line))
            for place in fields.places(*scales)
        ]
        self.numbers = [number_field(w, job, place) for place in fields.places(*numbers)]

    def write(self) -> None:
        """Generate all groups of the row, and store its sums."""
        w, b, kind = self.w, self.w.b, self.kind
        chains = kind.sums * self.vectors
        wide = ir.VectorType(DOUBLE, w.lanes.count)
        zeros = [ir.Constant(wide, [0.0] * w.lanes.count)] * chains
        groups = b.sdiv(b.add(self.line, b.sub(self.group, integer(1))), self.group)
        with loop(w, groups, *zeros) as group:
            first = b.mul(group.index, self.group)
            count = w.min_int(self.group, b.sub(self.line, first))
            with loop(w, count, *[w.lanes.zero] * chains) as row:
                row.next = self._row(b.add(first, row.index), row.values)
            ends = row.values if w.lanes.dtype == "float64" else [b.fpext(each, wide) for each in row.values]
            group.next = [b.fadd(total, end) for total, end in zip(group.values, ends, strict=True)]
        self._store_sums(group.values)

    def _store_sums(self, chains: Values) -> None:
        w, b, kind = self.w, self.w.b, self.kind
        for index in range(kind.sums):
            total: ir.Value = ir.Constant(DOUBLE, 0.0)
            for vector in range(self.vectors):
                for lane in range(w.lanes.count):
                    value = b.extract_element(chains[index * self.vectors + vector], integer(lane))
                    total = b.fadd(total, value)
            place = b.add(b.mul(self.number, integer(kind.sums)), integer(index))
            b.store(total, b.gep(self.sums, [place], source_etype=DOUBLE))

    def _row(self, row: ir.Value, sums: Values) -> Values:
        """Generate the images of a row: whole strips, then the vectors of the last strip that have images."""
        w, b = self.w, self.w.b
        maps = [
            w.element_pointer(base, b.mul(row, pitch))
            for base, pitch in zip(self.maps, self.pitches, strict=True)
        ]
        scales = [w.load_broadcast(w.element_pointer(base, row)) for base in self.scales]
        width = self.vectors * w.lanes.count
        whole = b.sdiv(self.images, integer(width))
        with loop(w, whole, *sums) as strip:
            lane = b.mul(strip.index, integer(width))
            found = list(strip.values)
            for vector in range(self.vectors):
                place = b.add(lane, integer(vector * w.lanes.count))
                self._vector(vector, maps, place, scales, found, None)
            strip.next = found
        found, done = list(strip.values), b.mul(whole, integer(width))
        for vector in range(self.vectors):
            place = b.add(done, integer(vector * w.lanes.count))
            found = self._if_any(vector, maps, place, scales, found)
        return found

    def _if_any(self, vector: int, maps: Values, place: ir.Value, scales: Values, sums: Values) -> Values:
        """Generate a vector of the last strip, for jobs in which it has images."""
        w, b = self.w, self.w.b
        before, left = b.block, b.sub(self.images, place)
        inside, after = (w.function.append_basic_block(name) for name in ("some", "none"))
        b.cbranch(b.icmp_signed(">", left, integer(0)), inside, after)
        b.position_at_end(inside)
        found = list(sums)
        self._vector(vector, maps, place, scales, found, w.lane_mask(left))
        end = b.block
        b.branch(after)
        b.position_at_end(after)
        joined = []
        for old, new in zip(sums, found, strict=True):
            if old is new:
                joined.append(old)
                continue
            phi = b.phi(old.type)
            phi.add_incoming(old, before)
            phi.add_incoming(new, end)
            joined.append(phi)
        return joined

    def _vector(
        self, vector: int, maps: Values, place: ir.Value, scales: Values, sums: Values, mask: ir.Value | None
    ) -> None:
        """Generate one vector; ``sums`` receive their new values."""
        w = self.w
        places = [w.element_pointer(base, place) for base in maps]
        read = [w.load(each) if mask is None else w.masked_load(each, mask) for each in places]
        own = [index * self.vectors + vector for index in range(self.kind.sums)]
        operands = PassVectors(read, scales, self.numbers, [sums[each] for each in own])
        written, added = self.kind.body(w, operands)
        for index, value in written.items():
            if mask is None:
                w.store(places[index], value)
            else:
                w.masked_store(places[index], value, mask)
        for each, value in zip(own, added, strict=True):
            sums[each] = value if mask is None else w.b.select(mask, value, sums[each])


def kernel(kind: Pass, dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of a pass."""
    write = partial(write_pass, kind, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(
        ("step", kind.name, dtype), processor, write, partial(_passes_self_test, kind, dtype, processor)
    )


def run(
    kind: Pass, maps: Sequence[Tensor], scales: Sequence[Tensor], numbers: Sequence[float], workers: Workers
) -> Tensor:
    """Run a pass on maps of one shape with images last; return its sums, float64.

    ``scales`` are contiguous ``(y, x, channel)``.
    """
    channels, height, width = maps[0].shape[1:]
    sums = torch.zeros((height, kind.sums), dtype=torch.float64, device="cpu")
    if maps[0].numel() == 0:
        return sums.sum(0)
    key = "step", kind, (channels, height, width), tuple(each.stride() for each in maps), workers
    cached_kernel(
        key, lambda: _prepare(kernel(kind, workers.dtype, workers.processor), kind, maps, workers)
    ).run(*map(pointer_of, (*maps, *scales, sums)), *map(bits, numbers))
    return sums.sum(0)


def _prepare(address: int, kind: Pass, maps: Sequence[Tensor], workers: Workers) -> PreparedKernel:
    """Prepare a pass by the kernel at an address; it runs on maps, scales, sums and numbers."""
    images, channels, height, width = maps[0].shape
    fields, names, scales, numbers = _names(kind)
    job = fields.fill(
        height,
        {"images": images, "line": width * channels, "group": max(1, GROUP_ELEMENTS // images)},
        dict(zip(names, map(required_map_strides, maps), strict=True)),
    )
    count = threads_for_cheap_pass(maps[0].numel(), workers.threads)
    return prepare_kernel(
        address, job, fields.places(*names, *scales, "sums", *numbers), 0, (workers.dtype, count)
    )


def _passes_self_test(kind: Pass, dtype: str, processor: Processor, address: int) -> bool:
    """True if a kernel computes small maps, with whole strips and a partial vector, correctly."""
    images, shape = CHAINS[dtype] + processor.lanes(dtype) + 3, (2, 3, 5)
    values = [self_test_reference.sample_values(*shape, images, seed=seed) for seed in range(kind.maps)]
    scales = [self_test_reference.sample_values(*shape, seed=5 + seed) for seed in range(kind.scales)]
    numbers = [0.5, 2.0][: kind.numbers]
    maps = [self_test_reference.as_map(each, dtype) for each in values]
    given = [self_test_reference.as_tensor(each, dtype) for each in scales]
    sums = torch.full((shape[0], kind.sums), torch.nan, dtype=torch.float64, device="cpu")
    workers = Workers(images, dtype, processor, 1)
    _prepare(address, kind, maps, workers).run(*map(pointer_of, (*maps, *given, sums)), *map(bits, numbers))
    written, terms = kind.plain(values, [each[..., None] for each in scales], numbers)
    error = self_test_reference.ROUNDING[dtype]
    return all(
        self_test_reference.map_agrees(found, written.get(index, values[index]), error)
        for index, found in enumerate(maps)
    ) and np.allclose(sums.sum(0).numpy(), [each.sum() for each in terms], rtol=error, atol=error)
