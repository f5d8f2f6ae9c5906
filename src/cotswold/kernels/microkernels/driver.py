"""Driver of the product kernels: one thread's loop over the tasks of a plan.

Knows: the tables of `plan`, the order of loops, scratch. Does not know: layers, the meaning of a table.

Threads take tasks from a shared counter. Within a task the loops are, from the outside: k-blocks of entries,
tiles of lanes, tiles of rows. The part of B that a tile of lanes needs stays in cache while A is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.compile.jobs import tasks
from cotswold.kernels.microkernels.job import ENTRY, JOB, LANE_TILE, ROW_TILE, TASK
from cotswold.kernels.microkernels.kinds import ProductKind, Tile, row_block_sizes
from cotswold.kernels.microkernels.panels import panel_offset, write_height, write_panels
from cotswold.kernels.microkernels.tile import write_tile
from cotswold.kernels.microkernels.transpose import write_transpose
from cotswold.kernels.microkernels.update import WIDEST, write_update


def write_kernel(kind: ProductKind, lanes: Lanes, tile: Tile, triple: str) -> ir.Module:
    """Return a module with one function, ``work(job)``, which runs tasks of the job until none is left."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}_{tile}")
    module.triple = triple
    tiles = _write_tiles(module, kind, lanes, tile)
    with tasks(module, lanes, JOB["claim"]) as (w, job, number, scratch):
        task = TASK.record(w, w.pointer_field(job, JOB["task_table"]), number)
        _write_task(w, kind, tile, tiles, job, task, scratch)
    return module


def task_tables(w: FunctionBuilder, job: ir.Value, task: ir.Value) -> tuple[ir.Value, ...]:
    """Addresses of a task's entries, tiles of lanes and tiles of rows."""
    return tuple(
        table.record(w, w.pointer_field(job, JOB[name]), w.field(task, TASK[field]))
        for table, name, field in (
            (ENTRY, "entries", "entry"),
            (LANE_TILE, "lane_tiles", "lane_tile"),
            (ROW_TILE, "row_tiles", "row_tile"),
        )
    )


def _write_tiles(module: ir.Module, kind: ProductKind, lanes: Lanes, tile: Tile) -> ir.GlobalVariable:
    """Table of all tiles: for each height those of 1, 2, ... vectors with a mask, then the full one."""
    found = []
    for rows in row_block_sizes(tile):
        for vectors in range(1, tile.vectors + 1):
            name = f"tile_{rows}x{vectors}_masked"
            found.append(write_tile(module, name, lanes, Tile(rows, vectors), kind.tile_config, True))
        shape = Tile(rows, tile.vectors)
        found.append(write_tile(module, f"tile_{shape}", lanes, shape, kind.tile_config, False))
    table = ir.GlobalVariable(module, ir.ArrayType(POINTER, len(found)), "tiles")
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, [one.bitcast(POINTER) for one in found])
    return table


def _write_task(
    w: FunctionBuilder,
    kind: ProductKind,
    tile: Tile,
    tiles: ir.Value,
    job: ir.Value,
    task: ir.Value,
    scratch: ir.Value,
) -> None:
    b, c = w.pointer_field(job, JOB["b"]), w.pointer_field(job, JOB["c"])
    b_pitch, pitch = w.field(job, JOB["b_pitch"]), w.field(job, JOB["scratch_pitch"])
    b_first, c_first = (
        w.element_pointer(b, w.field(task, TASK["b"])),
        w.element_pointer(c, w.field(task, TASK["c"])),
    )
    offsets = w.pointer_field(job, JOB["offsets"])
    lanes, images = w.field(task, TASK["lanes"]), w.field(job, JOB["images"])
    neurons = w.slot(offsets, w.field(task, TASK["neuron"]))
    transpose = write_transpose(w.function.module, w.lanes)
    if kind.pack_b:
        w.b.call(transpose, [b_first, neurons, lanes, images, scratch, pitch, integer(0)])
        second = w.pointer_field(job, JOB["second_b"])
        there = w.b.icmp_unsigned("!=", w.b.ptrtoint(second, I64), integer(0))
        with w.b.if_then(there):
            from_second = w.element_pointer(second, w.field(task, TASK["b"]))
            below = w.element_pointer(scratch, w.b.mul(images, pitch))
            w.b.call(transpose, [from_second, neurons, lanes, images, below, pitch, integer(0)])
        b_first, b_pitch = scratch, pitch
    target = scratch if kind.unpack_c else c_first
    if kind.update:
        target = w.element_pointer(scratch, w.field(job, JOB["gradient"]))
        _write_zeros(w, job, task, target)
    _write_tiled(w, kind, tile, tiles, job, task, (b_first, b_pitch, target), scratch)
    if kind.update:
        _write_updates(w, job, task, target)
    if kind.unpack_c:
        w.b.call(transpose, [c_first, neurons, lanes, images, scratch, pitch, integer(1)])


def _write_zeros(w: FunctionBuilder, job: ir.Value, task: ir.Value, gradient: ir.Value) -> None:
    """Write zeros to the gradient if a field reaches into the padding, which no tile writes."""
    with w.b.if_then(w.b.icmp_signed("!=", w.field(task, TASK["padded"]), integer(0))):
        size = w.b.mul(w.field(job, JOB["filter_rows"]), w.field(job, JOB["scratch_pitch"]))
        with loop(w, size, step=w.lanes.count) as turn:
            w.store(w.element_pointer(gradient, turn.index), w.lanes.zero)


def _write_updates(w: FunctionBuilder, job: ir.Value, task: ir.Value, gradient: ir.Value) -> None:
    """Update the filters of the task's neurons, some vectors at a time."""
    functions = write_update(w.function.module, w.lanes)
    build, widest = w.b, WIDEST * w.lanes.count
    place = w.field(task, TASK["c"])
    filters, momentum = (
        w.element_pointer(w.pointer_field(job, one), place) for one in JOB.places("filters", "momentum")
    )
    norms = w.element_pointer(w.pointer_field(job, JOB["norms"]), w.field(task, TASK["norm"]))
    count = w.field(task, TASK["lanes"])
    with loop(w, count, step=widest) as turn:
        here = w.min_int(build.sub(count, turn.index), integer(widest))
        vectors = build.sdiv(build.add(here, integer(w.lanes.count - 1)), integer(w.lanes.count))
        last = build.sub(here, build.mul(build.sub(vectors, integer(1)), integer(w.lanes.count)))
        arguments = [
            w.element_pointer(filters, turn.index),
            w.element_pointer(momentum, turn.index),
            w.field(job, JOB["filter_pitch"]),
            w.element_pointer(gradient, turn.index),
            w.field(job, JOB["scratch_pitch"]),
            w.element_pointer(norms, turn.index),
            w.field(job, JOB["filter_rows"]),
            last,
            w.pointer_field(job, JOB["constants"]),
        ]
        for number, function in enumerate(functions, 1):
            with build.if_then(build.icmp_signed("==", vectors, integer(number))):
                build.call(function, arguments)


def _write_tiled(
    w: FunctionBuilder,
    kind: ProductKind,
    tile: Tile,
    tiles: ir.Value,
    job: ir.Value,
    task: ir.Value,
    operands: tuple[ir.Value, ir.Value, ir.Value],
    scratch: ir.Value,
) -> None:
    """Loops over k-blocks of entries, tiles of lanes, tiles of rows; ``operands``: B, its stride, and C."""
    build, (b, b_pitch, c) = w.b, operands
    a = w.element_pointer(w.pointer_field(job, JOB["a"]), w.field(task, TASK["a"]))
    a_pitch, k_block = w.field(job, JOB["a_pitch"]), w.field(job, JOB["k_block"])
    added_to = w.field(job, JOB["accumulate"])
    offsets = w.slot(w.pointer_field(job, JOB["offsets"]), w.field(task, TASK["offset"]))
    entries, lane_tiles, row_tiles = task_tables(w, job, task)
    count = w.field(task, TASK["entries"])
    biases = (
        w.element_pointer(w.pointer_field(job, JOB["biases"]), w.field(task, TASK["norm"]))
        if kind.epilogue
        else None
    )
    k_blocks = build.sdiv(build.sub(build.add(count, k_block), integer(1)), k_block)
    at_least_one = build.select(build.icmp_signed(">", k_blocks, integer(0)), k_blocks, integer(1))
    with loop(w, at_least_one) as part:
        first = build.mul(part.index, k_block)
        here = w.min_int(k_block, build.sub(count, first))
        now = ENTRY.record(w, entries, first)
        final = build.icmp_signed("==", build.add(part.index, integer(1)), at_least_one)
        panels = (
            _write_copies(w, kind, tile, job, task, (a, a_pitch, now, row_tiles), scratch)
            if kind.panels
            else None
        )
        with loop(w, w.field(task, TASK["lane_tiles"])) as across:
            record = LANE_TILE.record(w, lane_tiles, across.index)
            lane, variant, last = LANE_TILE.load(w, record)
            b_here, c_here = w.element_pointer(b, lane), w.element_pointer(c, lane)
            with loop(w, w.field(task, TASK["row_tiles"])) as down:
                record = ROW_TILE.record(w, row_tiles, down.index)
                row, height, a_offset = ROW_TILE.load(w, record)
                if kind.update:
                    _write_fetches(w, tile, job, task, row, lane)
                number = build.add(build.mul(height, integer(tile.vectors + 1)), variant)
                place = build.gep(tiles, [integer(0), number], source_etype=tiles.value_type)
                if kind.a_rows_adjacent:
                    towards, onward = integer(0), integer(1)
                else:
                    towards, onward = _next_tile(w, task, row_tiles, across.index, down.index, a_offset)
                a_here, pitch = w.element_pointer(a, a_offset), a_pitch
                if panels is not None:
                    copied = write_height(w, tile, height)
                    source, panel = a_here, panels.row_tile_address(w, a_offset, down.index)
                    a_here = build.select(panels.copied_panels, panel, source)
                    pitch = build.select(panels.copied_panels, copied, a_pitch)
                    # the next values to copy are at the source
                    towards = build.sdiv(
                        build.sub(build.ptrtoint(source, I64), build.ptrtoint(a_here, I64)),
                        integer(w.lanes.scalar_bytes),
                    )
                arguments = [now, here, a_here, pitch, b_here, b_pitch, towards, onward]
                # all k-blocks but the first add to C; the first adds if the job says so
                arguments += [c_here, w.slot(offsets, row), last, build.or_(first, added_to)]
                none = ir.Constant(POINTER, None)
                arguments.append(
                    none if biases is None else build.select(final, w.element_pointer(biases, row), none)
                )
                arguments.append(a_pitch)
                signature = ir.FunctionType(VOID, [one.type for one in arguments])
                build.call(build.load(place, typ=signature.as_pointer()), arguments)


@dataclass(frozen=True, eq=False)
class _Panels:
    """Packed A of a k-block, if packed: its address, the offset of its first tile, the k of its entry."""

    copied_panels: ir.Value
    place: ir.Value
    origin: ir.Value
    k: ir.Value
    skipped_offset: ir.Value
    """Offset that a tile adds to the address of A for the entry."""

    def row_tile_address(self, w: FunctionBuilder, offset: ir.Value, number: ir.Value) -> ir.Value:
        """Address of A for the tile of rows ``number``."""
        panel = panel_offset(w, offset, self.origin, self.k, number)
        return w.element_pointer(self.place, w.b.sub(panel, self.skipped_offset))


def _write_copies(
    w: FunctionBuilder,
    kind: ProductKind,
    tile: Tile,
    job: ir.Value,
    task: ir.Value,
    k_block: tuple[ir.Value, ir.Value, ir.Value, ir.Value],
    scratch: ir.Value,
) -> _Panels:
    """Pack A of a k-block, if the job says so."""
    a, a_pitch, entry, row_tiles = k_block
    copied = w.b.icmp_signed("!=", w.field(job, JOB["panels"]), integer(0))
    entry, row_tiles = (w.b.select(copied, one, job) for one in (entry, row_tiles))  # there may be none
    skipped, k = w.field(entry, ENTRY["a"]), w.field(entry, ENTRY["k"])
    function = w.function.module.globals.get("panels")
    if function is None:
        function = write_panels(w.function.module, w.lanes, tile)
    with w.b.if_then(copied):
        w.b.call(
            function,
            [w.element_pointer(a, skipped), a_pitch, k, row_tiles, w.field(task, TASK["row_tiles"]), scratch],
        )
    return _Panels(copied, scratch, w.field(row_tiles, ROW_TILE["a"]), k, skipped)


def _next_tile(
    w: FunctionBuilder, task: ir.Value, row_tiles: ir.Value, across: ir.Value, down: ir.Value, a: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Distance to A of the next tile of rows, and 1 if that tile is in the next k-block, else 0."""
    count, one = w.field(task, TASK["row_tiles"]), integer(1)
    following = w.b.add(down, one)
    last = w.b.icmp_signed("==", following, count)
    number = w.b.select(last, integer(0), following)
    record = ROW_TILE.record(w, row_tiles, number)
    towards = w.b.sub(w.field(record, ROW_TILE["a"]), a)
    end = w.b.icmp_signed("==", w.b.add(across, one), w.field(task, TASK["lane_tiles"]))
    return towards, w.b.zext(w.b.and_(last, end), I64)


def _write_fetches(
    w: FunctionBuilder, tile: Tile, job: ir.Value, task: ir.Value, row: ir.Value, lane: ir.Value
) -> None:
    """Prefetch the filters and momentum that the next tile's result updates."""
    pitch = w.field(job, JOB["filter_pitch"])
    start = w.b.add(w.b.add(w.field(task, TASK["c"]), lane), w.b.mul(row, pitch))
    for table in JOB.places("filters", "momentum"):
        base = w.element_pointer(w.pointer_field(job, table), start)
        for i in range(tile.rows):
            line = w.element_pointer(base, w.b.mul(pitch, integer(i)))
            for v in range(tile.vectors):
                w.prefetch_l2(w.element_pointer(line, v * w.lanes.count))
