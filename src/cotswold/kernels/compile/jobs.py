"""Jobs of kernels: their fields by name, the loop over tasks from an atomic counter, masked strips of lanes.

Knows: a job as a table of integers, records of other tables, the task counter. Does not know: what is
computed. A job starts with the fields of `JobHead`; a kernel's own fields follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from struct import pack, unpack

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from cotswold.kernels.compile.emit import (
    BYTES,
    I32,
    POINTER,
    VOID,
    FunctionBuilder,
    Lanes,
    declare,
    integer,
    loop,
)
from cotswold.kernels.machine.execution import LINE, LruCache, PreparedKernel
from cotswold.kernels.operands import MapStrides

DOUBLE = ir.DoubleType()


class JobHead(IntEnum):
    """First fields of every job."""

    NEXT = 0
    SLOTS = 1
    TASKS = 2
    SCRATCH = 3
    SLOT_SIZE = 4


class Fields:
    """The fields of a record of integers, by name."""

    def __init__(self, *names: str) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self.size = len(names)

    def __getitem__(self, name: str) -> int:
        """Return the place of a field, or of the first field of a map."""
        return self._places[name]

    def places(self, *names: str) -> tuple[int, ...]:
        """Return the places of some fields."""
        return tuple(map(self._places.__getitem__, names))

    def record(self, w: FunctionBuilder, table: ir.Value, number: ir.Value) -> ir.Value:
        """Return the address of a record of a table."""
        return w.slot(table, w.b.mul(number, integer(self.size)))

    def load(self, w: FunctionBuilder, record: ir.Value) -> list[ir.Value]:
        """Load all fields of a record."""
        return [w.field(record, place) for place in range(self.size)]


class JobFields(Fields):
    """The fields of a job: those of every job, numbers and addresses by name, then maps of four fields each.

    A map is the address of its first element and its strides: row, column, channel.
    """

    def __init__(self, *numbers: str, maps: tuple[str, ...] = ()) -> None:
        super().__init__(*JobHead.__members__, *numbers)
        self._places |= {name: self.size + 4 * i for i, name in enumerate(maps)}
        self.size += 4 * len(maps)

    def fill(
        self,
        tasks: int,
        values: Mapping[str, int],
        strides: Mapping[str, MapStrides | None] | None = None,
    ) -> NDArray[np.int64]:
        """Return a job of some tasks with these numbers, and strides of maps; other fields are 0."""
        job = np.zeros(self.size, np.int64)
        job[JobHead.TASKS] = tasks
        for name, value in values.items():
            job[self._places[name]] = value
        for name, map_ in (strides or {}).items():
            if map_ is not None:
                job[self._places[name] + 1 : self._places[name] + 4] = map_.row, map_.column, map_.channel
        return job


READY: LruCache[tuple[object, ...], PreparedKernel] = LruCache(256, 64 << 20)
"""Cache of the latest prepared passes over maps and filters, by all that they depend on."""


def bits(value: float) -> int:
    """Return the bits of a float64 as an integer."""
    found: int = unpack("<q", pack("<d", value))[0]
    return found


def up_to_power(least: int) -> int:
    """Return the least power of two that is at least ``least``."""
    return 1 << max(0, least - 1).bit_length()


def cached_kernel(key: tuple[object, ...], make: Callable[[], PreparedKernel]) -> PreparedKernel:
    """Return the cached value of a key; make it if it is missing."""
    found = READY.find(key)
    return found if found is not None else READY.put(key, make)


def prepare_kernel(
    code: int,
    fields: NDArray[np.int64],
    operand_slots: tuple[int, ...],
    scratch: int,
    workers: tuple[str, int],
    keepalive: object = None,
) -> PreparedKernel:
    """Return a kernel with its job; operands' addresses go to the fields ``operand_slots``.

    ``workers`` are the dtype and the number of threads, each with ``scratch`` elements of scratch;
    ``keepalive`` keeps alive what the job points to.
    """
    dtype, threads = workers
    whole = -(-scratch * BYTES[dtype] // LINE) * LINE
    fields[JobHead.SLOT_SIZE] = whole // BYTES[dtype]
    return PreparedKernel(code, fields, operand_slots, JobHead.SCRATCH, whole * threads, threads, keepalive)


@contextmanager
def tasks(
    module: ir.Module, lanes: Lanes, claim: int | None = None
) -> Iterator[tuple[FunctionBuilder, ir.Value, ir.Value, ir.Value]]:
    """Generate ``work(job)``, with one task as its body: yield the writer, job, task number and scratch.

    ``claim`` is the job's field with the number of tasks that a thread takes at a time; None for one.
    """
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "work")
    w = FunctionBuilder(function, lanes)
    (job,) = function.args
    slot = w.b.atomic_rmw("add", w.slot(job, JobHead.SLOTS), integer(1), "monotonic")
    scratch = w.element_pointer(
        w.pointer_field(job, JobHead.SCRATCH), w.b.mul(slot, w.field(job, JobHead.SLOT_SIZE))
    )
    size = integer(1) if claim is None else w.field(job, claim)
    again, taken, done = (function.append_basic_block(name) for name in ("again", "taken", "done"))
    w.b.branch(again)
    w.b.position_at_end(again)
    first = w.b.atomic_rmw("add", w.slot(job, JobHead.NEXT), size, "monotonic")
    count = w.field(job, JobHead.TASKS)
    w.b.cbranch(w.b.icmp_signed("<", first, count), taken, done)
    w.b.position_at_end(taken)
    if claim is None:
        yield w, job, first, scratch
    else:
        with loop(w, w.min_int(size, w.b.sub(count, first))) as turn:
            yield w, job, w.b.add(first, turn.index), scratch
    w.b.branch(again)
    w.b.position_at_end(done)
    w.b.ret_void()


class Strip:
    """Load and store of several adjacent vectors, the last of which may be partial."""

    def __init__(self, w: FunctionBuilder, vectors: int, last: ir.Value | None) -> None:
        self.w, self.vectors = w, vectors
        self.mask = w.lane_mask(last) if last is not None else None

    @property
    def size(self) -> int:
        """Elements of a strip in scratch."""
        return self.vectors * self.w.lanes.count

    def vector_address(self, pointer: ir.Value, vector: int) -> ir.Value:
        """Address of a vector of the strip at ``pointer``."""
        return self.w.element_pointer(pointer, vector * self.w.lanes.count)

    def load(self, pointer: ir.Value) -> list[ir.Value]:
        """Load the strip from a map."""
        return [self._read(self.vector_address(pointer, v), v) for v in range(self.vectors)]

    def _read(self, place: ir.Value, vector: int) -> ir.Value:
        if self.mask is not None and vector == self.vectors - 1:
            return self.w.masked_load(place, self.mask)
        return self.w.load(place)

    def store(self, pointer: ir.Value, values: list[ir.Value]) -> None:
        """Store the strip to a map."""
        for v, value in enumerate(values):
            if self.mask is not None and v == self.vectors - 1:
                self.w.masked_store(self.vector_address(pointer, v), value, self.mask)
            else:
                self.w.store(self.vector_address(pointer, v), value)

    def load_scratch(self, pointer: ir.Value) -> list[ir.Value]:
        """Load the strip from scratch, where all vectors are whole."""
        return [self.w.load(self.vector_address(pointer, v)) for v in range(self.vectors)]

    def store_scratch(self, pointer: ir.Value, values: list[ir.Value]) -> None:
        """Store the strip to scratch."""
        for v, value in enumerate(values):
            self.w.store(self.vector_address(pointer, v), value)

    def zeros(self) -> list[ir.Value]:
        """Return a strip of zeros."""
        return [self.w.lanes.zero] * self.vectors

    def prefetch(self, pointer: ir.Value) -> None:
        """Prefetch the strip's lines into the second-level cache."""
        words = [ir.Constant(I32, one) for one in (0, 2, 1)]
        prefetch = declare(self.w.function.module, "llvm.prefetch.p0", VOID, [POINTER, I32, I32, I32])
        per_line = max(1, LINE // (self.w.lanes.count * BYTES[self.w.lanes.dtype]))
        for v in range(0, self.vectors, per_line):
            self.w.b.call(prefetch, [self.vector_address(pointer, v), *words])


def max_int(w: FunctionBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Maximum of two integers."""
    return w.b.select(w.b.icmp_signed(">", a, b), a, b)


def range_length(w: FunctionBuilder, first: ir.Value, stop: ir.Value) -> ir.Value:
    """Length of a half-open range; 0 if it is reversed."""
    return max_int(w, w.b.sub(stop, first), integer(0))


def number_field(w: FunctionBuilder, job: ir.Value, index: int) -> ir.Value:
    """Broadcast a float64 of a job to every lane."""
    value = w.b.load(w.slot(job, index), typ=DOUBLE)
    if w.lanes.dtype == "float32":
        value = w.b.fptrunc(value, w.lanes.scalar)
    return w.splat(value)


@contextmanager
def loop_range(w: FunctionBuilder, done: ir.Value, stop: ir.Value) -> Iterator[ir.Value]:
    """``for index in range(done, stop)``, which may be empty."""
    with loop(w, range_length(w, done, stop)) as turn:
        yield w.b.add(done, turn.index)


def strips(
    w: FunctionBuilder, vectors: int, lanes: ir.Value, body: Callable[[Strip, ir.Value], None]
) -> None:
    """Run ``body(strip, first lane)`` for all lanes: wide strips, then single vectors with a mask."""
    b, wide = w.b, vectors * w.lanes.count
    whole = b.sdiv(lanes, integer(wide))
    with loop(w, whole) as turn:
        body(Strip(w, vectors, None), b.mul(turn.index, integer(wide)))
    done = b.mul(whole, integer(wide))
    rest = b.sub(lanes, done)
    with loop(w, rest, step=w.lanes.count) as turn:
        body(Strip(w, 1, b.sub(rest, turn.index)), b.add(done, turn.index))
