"""Driver of the product kernels: one thread's loop over the tasks of a plan.

Knows: the tables of `plan`, the order of loops, scratch. Does not know: layers, the meaning of a table.

Threads take tasks from a shared counter. Within a task the loops are, from the outside: k-blocks of entries,
tiles of lanes, tiles of rows. The part of B that a tile of lanes needs stays in cache while A is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, Lanes, integer, loop
from cotswold.kernels.microkernels.activation import ACTIVATIONS
from cotswold.kernels.microkernels.job import ProductJob, Task
from cotswold.kernels.microkernels.panels import panel_offset, write_height, write_panels
from cotswold.kernels.microkernels.tile import ENTRY_FIELDS, Tile, TileConfig, row_block_sizes, write_tile
from cotswold.kernels.microkernels.transpose import write_transpose
from cotswold.kernels.microkernels.update import WIDEST, write_update

ROW_TILE_FIELDS = 3
"""Integers of a tile of rows: first row in the offsets, index of its height, offset of its A."""
LANE_TILE_FIELDS = 3
"""Integers of a tile of lanes: first lane, variant, lanes in the last vector."""


@dataclass(frozen=True)
class ProductKind:
    """Work of a kernel around its tiles.

    ``a_rows_adjacent``, ``epilogue``: see `tile.TileConfig`. ``panels``: if the job says so, A is packed once
    per k-block, which is then one entry. ``pack_b``: first pack B into scratch by transposing the neurons of
    one map, or of two if the job has a second B. ``unpack_c``: C goes to scratch and is transposed to its
    map afterwards. ``update``: C is a gradient in scratch that updates the filters.
    """

    name: str
    a_rows_adjacent: bool
    pack_b: bool = False
    unpack_c: bool = False
    update: bool = False
    epilogue: str = ""
    panels: bool = False

    @property
    def tile_config(self) -> TileConfig:
        """Layout of its tiles."""
        return TileConfig(self.a_rows_adjacent, self.epilogue)


PRODUCT = ProductKind("product", a_rows_adjacent=True, panels=True)
PRODUCT_SMALL_BATCH = ProductKind("product_small_batch", a_rows_adjacent=True, unpack_c=True)
ADJOINT = ProductKind("adjoint", a_rows_adjacent=False)
OUTER = ProductKind("outer", a_rows_adjacent=False, pack_b=True)
STEP = ProductKind("step", a_rows_adjacent=False, pack_b=True, update=True)
PRODUCT_WITH_EPILOGUE = {
    name: ProductKind(f"product_{name}", a_rows_adjacent=True, epilogue=name, panels=True)
    for name in ACTIVATIONS
}
KINDS = {
    kind.name: kind
    for kind in (PRODUCT, PRODUCT_SMALL_BATCH, ADJOINT, OUTER, STEP, *PRODUCT_WITH_EPILOGUE.values())
}


def write_kernel(kind: ProductKind, lanes: Lanes, tile: Tile, triple: str) -> ir.Module:
    """Return a module with one function, ``work(job)``, which runs tasks of the job until none is left."""
    module = ir.Module(f"{kind.name}_{lanes.dtype}_{lanes.count}_{tile}")
    module.triple = triple
    tiles = _write_tiles(module, kind, lanes, tile)
    write_work(
        module, lanes, lambda w, job, task, scratch: _write_task(w, kind, tile, tiles, job, task, scratch)
    )
    return module


def write_work(
    module: ir.Module,
    lanes: Lanes,
    write_task: Callable[[FunctionBuilder, ir.Value, ir.Value, ir.Value], None],
) -> None:
    """Generate ``work(job)``; ``write_task`` generates the code of one task."""
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER]), "work")
    w = FunctionBuilder(function, lanes)
    (job,) = function.args
    slot = w.b.atomic_rmw("add", w.slot(job, ProductJob.SLOTS), integer(1), "monotonic")
    scratch = w.element_pointer(
        w.pointer_field(job, ProductJob.SCRATCH), w.b.mul(slot, w.field(job, ProductJob.SLOT_SIZE))
    )
    count, claim = w.field(job, ProductJob.TASK_COUNT), w.field(job, ProductJob.CLAIM)
    again, done = function.append_basic_block("again"), function.append_basic_block("done")
    taken = function.append_basic_block("taken")
    w.b.branch(again)
    w.b.position_at_end(again)
    first = w.b.atomic_rmw("add", w.slot(job, ProductJob.NEXT), claim, "monotonic")
    w.b.cbranch(w.b.icmp_signed("<", first, count), taken, done)
    w.b.position_at_end(taken)
    here = w.min_int(claim, w.b.sub(count, first))
    with loop(w, here) as turn:
        number = w.b.add(first, turn.index)
        task = w.slot(w.pointer_field(job, ProductJob.TASKS), w.b.mul(number, integer(Task.FIELDS)))
        write_task(w, job, task, scratch)
    w.b.branch(again)
    w.b.position_at_end(done)
    w.b.ret_void()


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
    b, c = w.pointer_field(job, ProductJob.B), w.pointer_field(job, ProductJob.C)
    b_pitch, pitch = w.field(job, ProductJob.B_PITCH), w.field(job, ProductJob.SCRATCH_PITCH)
    b_first, c_first = (
        w.element_pointer(b, w.field(task, Task.B)),
        w.element_pointer(c, w.field(task, Task.C)),
    )
    offsets = w.pointer_field(job, ProductJob.OFFSETS)
    lanes, images = w.field(task, Task.LANES), w.field(job, ProductJob.IMAGES)
    neurons = w.slot(offsets, w.field(task, Task.NEURON))
    transpose = write_transpose(w.function.module, w.lanes)
    if kind.pack_b:
        w.b.call(transpose, [b_first, neurons, lanes, images, scratch, pitch, integer(0)])
        second = w.pointer_field(job, ProductJob.SECOND_B)
        there = w.b.icmp_unsigned("!=", w.b.ptrtoint(second, I64), integer(0))
        with w.b.if_then(there):
            from_second = w.element_pointer(second, w.field(task, Task.B))
            below = w.element_pointer(scratch, w.b.mul(images, pitch))
            w.b.call(transpose, [from_second, neurons, lanes, images, below, pitch, integer(0)])
        b_first, b_pitch = scratch, pitch
    target = scratch if kind.unpack_c else c_first
    if kind.update:
        target = w.element_pointer(scratch, w.field(job, ProductJob.GRADIENT))
        _write_zeros(w, job, task, target)
    _write_tiled(w, kind, tile, tiles, job, task, (b_first, b_pitch, target), scratch)
    if kind.update:
        _write_updates(w, job, task, target)
    if kind.unpack_c:
        w.b.call(transpose, [c_first, neurons, lanes, images, scratch, pitch, integer(1)])


def _write_zeros(w: FunctionBuilder, job: ir.Value, task: ir.Value, gradient: ir.Value) -> None:
    """Write zeros to the gradient if a field reaches into the padding, which no tile writes."""
    with w.b.if_then(w.b.icmp_signed("!=", w.field(task, Task.PADDED), integer(0))):
        size = w.b.mul(w.field(job, ProductJob.FILTER_ROWS), w.field(job, ProductJob.SCRATCH_PITCH))
        with loop(w, size, step=w.lanes.count) as turn:
            w.store(w.element_pointer(gradient, turn.index), w.lanes.zero)


def _write_updates(w: FunctionBuilder, job: ir.Value, task: ir.Value, gradient: ir.Value) -> None:
    """Update the filters of the task's neurons, some vectors at a time."""
    functions = write_update(w.function.module, w.lanes)
    build, widest, fields = w.b, WIDEST * w.lanes.count, ProductJob
    place = w.field(task, Task.C)
    filters, momentum = (
        w.element_pointer(w.pointer_field(job, one), place) for one in (fields.FILTERS, fields.MOMENTUM)
    )
    norms = w.element_pointer(w.pointer_field(job, ProductJob.NORMS), w.field(task, Task.NORM))
    count = w.field(task, Task.LANES)
    with loop(w, count, step=widest) as turn:
        here = w.min_int(build.sub(count, turn.index), integer(widest))
        vectors = build.sdiv(build.add(here, integer(w.lanes.count - 1)), integer(w.lanes.count))
        last = build.sub(here, build.mul(build.sub(vectors, integer(1)), integer(w.lanes.count)))
        arguments = [
            w.element_pointer(filters, turn.index),
            w.element_pointer(momentum, turn.index),
            w.field(job, ProductJob.FILTER_PITCH),
            w.element_pointer(gradient, turn.index),
            w.field(job, ProductJob.SCRATCH_PITCH),
            w.element_pointer(norms, turn.index),
            w.field(job, ProductJob.FILTER_ROWS),
            last,
            w.pointer_field(job, ProductJob.CONSTANTS),
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
    a = w.element_pointer(w.pointer_field(job, ProductJob.A), w.field(task, Task.A))
    fields = ProductJob
    a_pitch, k_block = w.field(job, fields.A_PITCH), w.field(job, fields.K_BLOCK)
    added_to = w.field(job, ProductJob.ACCUMULATE)
    offsets = w.slot(w.pointer_field(job, ProductJob.OFFSETS), w.field(task, Task.OFFSET))
    entry_size = integer(ENTRY_FIELDS)
    entries = w.slot(
        w.pointer_field(job, ProductJob.ENTRIES), build.mul(w.field(task, Task.ENTRY), entry_size)
    )
    count = w.field(task, Task.ENTRIES)
    lane_tiles, row_tiles = (
        w.slot(w.pointer_field(job, table), build.mul(w.field(task, field), integer(size)))
        for table, field, size in (
            (ProductJob.LANE_TILES, Task.LANE_TILE, LANE_TILE_FIELDS),
            (ProductJob.ROW_TILES, Task.ROW_TILE, ROW_TILE_FIELDS),
        )
    )
    biases = (
        w.element_pointer(w.pointer_field(job, fields.BIASES), w.field(task, Task.NORM))
        if kind.epilogue
        else None
    )
    k_blocks = build.sdiv(build.sub(build.add(count, k_block), integer(1)), k_block)
    at_least_one = build.select(build.icmp_signed(">", k_blocks, integer(0)), k_blocks, integer(1))
    with loop(w, at_least_one) as part:
        first = build.mul(part.index, k_block)
        here = w.min_int(k_block, build.sub(count, first))
        now = w.slot(entries, build.mul(first, entry_size))
        final = build.icmp_signed("==", build.add(part.index, integer(1)), at_least_one)
        panels = (
            _write_copies(w, kind, tile, job, task, (a, a_pitch, now, row_tiles), scratch)
            if kind.panels
            else None
        )
        with loop(w, w.field(task, Task.LANE_TILES)) as across:
            record = w.slot(lane_tiles, build.mul(across.index, integer(LANE_TILE_FIELDS)))
            lane, variant, last = (w.field(record, i) for i in range(LANE_TILE_FIELDS))
            b_here, c_here = w.element_pointer(b, lane), w.element_pointer(c, lane)
            with loop(w, w.field(task, Task.ROW_TILES)) as down:
                record = w.slot(row_tiles, build.mul(down.index, integer(ROW_TILE_FIELDS)))
                row, height, a_offset = (w.field(record, i) for i in range(ROW_TILE_FIELDS))
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
                arguments = [now, here, a_here, pitch, towards, onward, b_here, b_pitch]
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
    copied = w.b.icmp_signed("!=", w.field(job, ProductJob.PANELS), integer(0))
    entry, row_tiles = (w.b.select(copied, one, job) for one in (entry, row_tiles))  # there may be none
    skipped, k = w.field(entry, 0), w.field(entry, 2)
    function = w.function.module.globals.get("panels")
    if function is None:
        function = write_panels(w.function.module, w.lanes, tile, ROW_TILE_FIELDS)
    with w.b.if_then(copied):
        w.b.call(
            function,
            [w.element_pointer(a, skipped), a_pitch, k, row_tiles, w.field(task, Task.ROW_TILES), scratch],
        )
    return _Panels(copied, scratch, w.field(row_tiles, ROW_TILE_FIELDS - 1), k, skipped)


def _next_tile(
    w: FunctionBuilder, task: ir.Value, row_tiles: ir.Value, across: ir.Value, down: ir.Value, a: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Distance to A of the next tile of rows, and 1 if that tile is in the next k-block, else 0."""
    count, one = w.field(task, Task.ROW_TILES), integer(1)
    following = w.b.add(down, one)
    last = w.b.icmp_signed("==", following, count)
    number = w.b.select(last, integer(0), following)
    record = w.slot(row_tiles, w.b.mul(number, integer(ROW_TILE_FIELDS)))
    towards = w.b.sub(w.field(record, ROW_TILE_FIELDS - 1), a)
    end = w.b.icmp_signed("==", w.b.add(across, one), w.field(task, Task.LANE_TILES))
    return towards, w.b.zext(w.b.and_(last, end), I64)


def _write_fetches(
    w: FunctionBuilder, tile: Tile, job: ir.Value, task: ir.Value, row: ir.Value, lane: ir.Value
) -> None:
    """Prefetch the filters and momentum that the next tile's result updates."""
    pitch = w.field(job, ProductJob.FILTER_PITCH)
    start = w.b.add(w.b.add(w.field(task, Task.C), lane), w.b.mul(row, pitch))
    for table in (ProductJob.FILTERS, ProductJob.MOMENTUM):
        base = w.element_pointer(w.pointer_field(job, table), start)
        for i in range(tile.rows):
            line = w.element_pointer(base, w.b.mul(pitch, integer(i)))
            for v in range(tile.vectors):
                w.prefetch_l2(w.element_pointer(line, v * w.lanes.count))
