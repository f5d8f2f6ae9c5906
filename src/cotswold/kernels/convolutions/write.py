"""Code of the gradient of a convolution's filters, with images in the vector lanes.

Knows: tiles of field places and neurons, the order of every sum. Does not know: tensors, threads, padding.

    gradient[place, neuron] = sum over positions, then images, of x[position + place] delta[position, neuron]

A tile is ``places x neurons`` accumulators. For every position and every vector of images it reads
``places`` vectors of x and ``neurons`` vectors of δ, and adds their products. Images are lanes, so nothing is
transposed. All tiles of some neurons read the same δ of a block of positions, which is packed for them in
scratch.

Only the geometry decides the order of a sum. Images fall into the chains of one cache line: in float32,
chain c has the images c, c + 16, c + 32, ... of one position after the other. A chain starts at 0 in each
block of positions, and the blocks are added in order; at the end the chains are added in halves. Processors
with shorter vectors pass over a block several times, each time with other chains.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from cotswold.kernels.compile.emit import (
    I32,
    I64,
    POINTER,
    VOID,
    FunctionBuilder,
    Lanes,
    integer,
    loop,
)
from cotswold.kernels.compile.jobs import Fields, JobFields, max_int, tasks

CHAIN_BYTES = 64
"""Bytes of one element of every chain; it determines the bits of sums over images."""
POSITION = Fields("x", "delta")
"""A position: its offsets in x and in δ."""
PASS = Fields("whole", "rest")
"""A pass over the images: whole vectors, lanes of one vector more."""
GROUP = 4
"""Vectors addressed from one pointer: at 0, 1, 2 and 3 strides."""
JOB = JobFields(
    *("x", "delta", "gradient", "parts", "tiles", "targets", "positions", "passes"),
    *("x_pitch", "delta_pitch", "count", "block", "chunks", "panel"),
)
TILE = Fields("shape", "x", "delta", "neurons", "first", "stop", "sum")
"""A tile: its size, its operands, and the positions that read no padding above or below.

``sum`` is the number of its first sum; sums are ordered ``[tile][place][neuron]``.
"""


def tile_limits(isa: str) -> tuple[int, int]:
    """Return the most places and neurons of a tile, whose sums and operands fill the registers."""
    return (4, 3) if isa == "avx2" else (6, 4)


def shape_number(places: int, neurons: int, limits: tuple[int, int]) -> int:
    """Return the number of a tile's function; 0 places for the gradient of biases."""
    return places * limits[1] + neurons - 1


def write_gradient(lanes: Lanes, limits: tuple[int, int], triple: str) -> ir.Module:
    """Return a module with ``work(job)``; a task is some tiles over all positions."""
    module = ir.Module(f"convolution_gradient_{lanes.dtype}_{lanes.count}")
    module.triple = triple
    table = _write_tiles(module, lanes, limits)
    pack, finish = _write_pack(module, lanes), _write_finish(module, lanes)
    with tasks(module, lanes) as (w, job, number, scratch):
        _write_part(w, table, (pack, finish), job, number, scratch)
    return module


def _write_tiles(module: ir.Module, lanes: Lanes, limits: tuple[int, int]) -> ir.GlobalVariable:
    found = [
        _write_tile(module, lanes, places, neurons)
        for places in range(limits[0] + 1)
        for neurons in range(1, limits[1] + 1)
    ]
    table = ir.GlobalVariable(module, ir.ArrayType(POINTER, len(found)), "tiles")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, [one.bitcast(POINTER) for one in found])
    return table


def _write_part(
    w: FunctionBuilder,
    table: ir.GlobalVariable,
    functions: tuple[ir.Function, ir.Function],
    job: ir.Value,
    number: ir.Value,
    scratch: ir.Value,
) -> None:
    """Write a task: every tile of the part over a block of positions, then over the next block."""
    b = w.b
    pack, finish = functions
    part = w.slot(w.pointer_field(job, JOB["parts"]), number)
    first = w.field(part, 0)
    count = b.sub(w.field(part, 1), first)
    tiles = TILE.record(w, w.pointer_field(job, JOB["tiles"]), first)
    positions, chunks = w.field(job, JOB["count"]), w.field(job, JOB["chunks"])
    step, passes = w.field(job, JOB["block"]), w.pointer_field(job, JOB["passes"])
    delta_pitch = w.field(job, JOB["delta_pitch"])
    line = CHAIN_BYTES // w.lanes.scalar_bytes
    # sums of the part: behind packed δ; the tile after the last tells their number
    sums = w.element_pointer(scratch, w.field(job, JOB["panel"]))
    first_sum = w.field(tiles, TILE["sum"])
    end_sum = w.field(TILE.record(w, tiles, count), TILE["sum"])
    with loop(w, b.mul(b.sub(end_sum, first_sum), integer(line)), step=w.lanes.count) as turn:
        w.store(w.element_pointer(sums, turn.index), w.lanes.zero)
    with loop(w, b.sdiv(b.sub(b.add(positions, step), integer(1)), step)) as block:
        begin = b.mul(block.index, step)
        end = w.min_int(b.add(begin, step), positions)
        with loop(w, count, integer(-1)) as turn:
            tile = TILE.record(w, tiles, turn.index)
            delta, neurons = w.field(tile, TILE["delta"]), w.field(tile, TILE["neurons"])
            with b.if_then(b.icmp_signed("!=", delta, turn.values[0])):
                places = POSITION.record(w, w.pointer_field(job, JOB["positions"]), begin)
                source = w.element_pointer(w.pointer_field(job, JOB["delta"]), delta)
                b.call(
                    pack, [places, b.sub(end, begin), source, delta_pitch, neurons, chunks, passes, scratch]
                )
            turn.next = [delta]
            top = max_int(w, begin, w.field(tile, TILE["first"]))
            bottom = w.min_int(end, w.field(tile, TILE["stop"]))
            with b.if_then(b.icmp_signed("<", top, bottom)):
                step_here = b.mul(b.mul(neurons, chunks), integer(line))
                arguments = [
                    POSITION.record(w, w.pointer_field(job, JOB["positions"]), top),
                    b.sub(bottom, top),
                    w.element_pointer(w.pointer_field(job, JOB["x"]), w.field(tile, TILE["x"])),
                    w.field(job, JOB["x_pitch"]),
                    w.element_pointer(scratch, b.mul(b.sub(top, begin), step_here)),
                    step_here,
                    passes,
                    w.element_pointer(
                        sums, b.mul(b.sub(w.field(tile, TILE["sum"]), first_sum), integer(line))
                    ),
                ]
                shape = w.field(tile, TILE["shape"])
                place = b.gep(table, [integer(0), shape], source_etype=table.value_type)
                signature = ir.FunctionType(VOID, [one.type for one in arguments])
                b.call(b.load(place, typ=signature.as_pointer()), arguments)
    targets = w.slot(w.pointer_field(job, JOB["targets"]), first_sum)
    b.call(finish, [sums, b.sub(end_sum, first_sum), targets, w.pointer_field(job, JOB["gradient"])])


def _write_finish(module: ir.Module, lanes: Lanes) -> ir.Function:
    """Generate the function that adds the chains of each sum and stores the results in the gradient."""
    kind = ir.FunctionType(VOID, [POINTER, I64, POINTER, POINTER])
    function = ir.Function(module, kind, "finish")
    function.linkage = "internal"
    w = FunctionBuilder(function, lanes)
    b = w.b
    sums, count, targets, gradient = function.args
    line = CHAIN_BYTES // lanes.scalar_bytes

    def write(first: ir.Value, number: int) -> None:
        chains = [
            [
                w.load(w.element_pointer(sums, b.add(b.mul(first, integer(line)), integer(i * line + start))))
                for i in range(number)
            ]
            for start in range(0, line, lanes.count)
        ]
        while len(chains) > 1:
            half = len(chains) // 2
            chains = [
                [b.fadd(one, other) for one, other in zip(low, high, strict=True)]
                for low, high in zip(chains[:half], chains[half:], strict=True)
            ]
        for i, value in enumerate(_lane_sums(w, chains[0])):
            b.store(value, w.element_pointer(gradient, w.field(targets, b.add(first, integer(i)))))

    groups = b.sdiv(count, integer(lanes.count))
    with loop(w, groups) as turn:
        write(b.mul(turn.index, integer(lanes.count)), lanes.count)
    done = b.mul(groups, integer(lanes.count))
    with loop(w, b.sub(count, done)) as turn:
        write(b.add(done, turn.index), 1)
    b.ret_void()
    return function


def _write_pack(module: ir.Module, lanes: Lanes) -> ir.Function:
    """Generate the function that packs δ of some positions as ``[position][line of images][neuron]``.

    A line has one element of every chain; lanes beyond the last image are 0.
    """
    kind = ir.FunctionType(VOID, [POINTER, I64, POINTER, I64, I64, I64, POINTER, POINTER])
    function = ir.Function(module, kind, "pack")
    function.linkage = "internal"
    w = FunctionBuilder(function, lanes)
    b = w.b
    positions, count, delta, pitch, neurons, chunks, passes, target = function.args
    line = CHAIN_BYTES // lanes.scalar_bytes
    with loop(w, count) as along, loop(w, neurons) as down:
        place = w.field(POSITION.record(w, positions, along.index), POSITION["delta"])
        source = w.element_pointer(w.element_pointer(delta, place), b.mul(down.index, pitch))
        first = b.add(b.mul(b.mul(along.index, chunks), neurons), down.index)
        out = w.element_pointer(target, b.mul(first, integer(line)))
        step = b.mul(neurons, integer(line))
        for number in range(line // lanes.count):
            record = w.slot(passes, PASS.size * number)
            whole, rest = PASS.load(w, record)
            here = w.element_pointer(source, number * lanes.count)
            there = w.element_pointer(out, number * lanes.count)
            with loop(w, whole, here, there) as turn:
                w.store(turn.values[1], w.load(turn.values[0]))
                turn.next = [w.element_pointer(turn.values[0], line), w.element_pointer(turn.values[1], step)]
            with b.if_then(b.icmp_signed("<", whole, chunks)):
                w.store(turn.values[1], w.masked_load(turn.values[0], w.lane_mask(rest)))
    b.ret_void()
    return function


def _write_tile(module: ir.Module, lanes: Lanes, places: int, neurons: int) -> ir.Function:
    """Generate one tile; without places it sums δ.

    Arguments: positions and their number; x and the stride of places; packed δ and its stride of
    positions; the passes; the chains of its sums, to which it adds.
    """
    kind = ir.FunctionType(VOID, [POINTER, I64, POINTER, I64, POINTER, I64, POINTER, POINTER])
    function = ir.Function(module, kind, f"tile_{places}x{neurons}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    w = FunctionBuilder(function, lanes)
    line = CHAIN_BYTES // lanes.scalar_bytes
    for number in range(line // lanes.count):
        sums = _write_pass(w, places, neurons, number)
        for i, value in enumerate(sums):
            target = w.element_pointer(function.args[-1], i * line + number * lanes.count)
            w.store(target, w.b.fadd(w.load(target), value))
    w.b.ret_void()
    return function


def _write_pass(w: FunctionBuilder, places: int, neurons: int, number: int) -> list[ir.Value]:
    """Write a pass over all positions with the chains of one vector; return their sums."""
    b, lanes = w.b, w.lanes
    positions, count, x, x_pitch, delta, delta_step, passes, _ = w.function.args
    record = w.slot(passes, PASS.size * number)
    whole, rest = PASS.load(w, record)
    mask, is_part = w.lane_mask(rest), b.icmp_signed("!=", rest, integer(0))
    x, delta = (w.element_pointer(one, number * lanes.count) for one in (x, delta))
    line = CHAIN_BYTES // lanes.scalar_bytes
    sums = [lanes.zero] * (max(places, 1) * neurons)
    steps = [integer(0), x_pitch, b.shl(x_pitch, integer(1)), b.mul(x_pitch, integer(3))]
    group = b.shl(x_pitch, integer(2))

    def products(pointers: Sequence[ir.Value], sums: list[ir.Value], masked: bool) -> list[ir.Value]:
        right = [w.load(w.element_pointer(pointers[0], n * line)) for n in range(neurons)]
        if not places:
            return [b.fadd(value, one) for value, one in zip(sums, right, strict=True)]
        found = []
        for place in range(places):
            here = w.element_pointer(pointers[1 + place // GROUP], steps[place % GROUP])
            left = w.masked_load(here, mask) if masked else w.load(here)
            found += [
                w.fma(left, one, value)
                for one, value in zip(right, sums[place * neurons : (place + 1) * neurons], strict=True)
            ]
        return found

    with loop(w, count, *sums) as along:
        position = POSITION.record(w, positions, along.index)
        pointers = [w.element_pointer(delta, b.mul(along.index, delta_step))]
        if places:
            pointers.append(w.element_pointer(x, w.field(position, POSITION["x"])))
        for _ in range(GROUP, places, GROUP):
            pointers.append(w.element_pointer(pointers[-1], group))
        with loop(w, whole, *pointers, *along.values) as turn:
            here, added = turn.values[: len(pointers)], turn.values[len(pointers) :]
            further = [line * neurons, *[line] * (len(pointers) - 1)]
            turn.next = [
                *(w.element_pointer(one, step) for one, step in zip(here, further, strict=True)),
                *products(here, added, False),
            ]
        here, added = turn.values[: len(pointers)], turn.values[len(pointers) :]
        start = b.block
        with b.if_then(is_part):
            more = products(here, added, True)
            end = b.block
        along.next = []
        for one, other in zip(added, more, strict=True):
            phi = b.phi(lanes.type)
            phi.add_incoming(one, start)
            phi.add_incoming(other, end)
            along.next.append(phi)
    return along.values


def _lane_sums(w: FunctionBuilder, vectors: list[ir.Value]) -> list[ir.Value]:
    """Return the sum of each vector's lanes, added in halves; two vectors share each addition."""
    width = w.lanes.count
    held, size, count = list(vectors), width, len(vectors)
    order = [[index] for index in range(count)]
    while size > 1:
        half = size // 2
        starts = range(0, 2 * width, size)
        low = [start + i for start in starts for i in range(half)]
        high = [start + half + i for start in starts for i in range(half)]
        if len(held) % 2:
            held, order = [*held, held[-1]], [*order, [-1] * len(order[-1])]
        held = [
            w.b.fadd(w.shuffle(one, other, low), w.shuffle(one, other, high))
            for one, other in zip(held[::2], held[1::2], strict=True)
        ]
        order = [[*one, *other] for one, other in zip(order[::2], order[1::2], strict=True)]
        size = half
    found: dict[int, ir.Value] = {}
    for vector, numbers in zip(held, order, strict=True):
        for lane, index in enumerate(numbers):
            if index >= 0:
                found[index] = w.b.extract_element(vector, ir.Constant(I32, lane))
    return [found[index] for index in range(count)]
