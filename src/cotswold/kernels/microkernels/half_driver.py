"""Driver of the half-precision product kernels: one thread's loop over the tasks of a plan.

Knows: the tables of `plan`, what is packed when, scratch. Does not know: layers, the meaning of a table.

Within a task the loops are, from the outside: tiles of lanes, chunks of entries. The part of B for a tile of
lanes is packed once per chunk, for every tile of rows. If a unit is one number, the first tile of rows packs
B while it multiplies, and a tile of rows of a few images never reads packed B. If rows of A are contiguous, A
is packed as well, some tiles of rows at a time for some tiles of lanes; float16 in short vectors is widened
likewise, and AMX always has A packed by rows. Between chunks the float32 sums of all rows stay in scratch.
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, integer, loop
from cotswold.kernels.compile.jobs import tasks
from cotswold.kernels.microkernels import amx
from cotswold.kernels.microkernels.driver import task_tables
from cotswold.kernels.microkernels.half_layout import (
    lane_tiles,
    packs_a,
    packs_rows,
    panel_pitch,
    panel_tiles,
    row_pitch,
)
from cotswold.kernels.microkernels.half_tile import LaneTile, RowTile, UnitTileConfig, write_half_tile
from cotswold.kernels.microkernels.half_units import (
    Units,
    unit_at,
    write_packing,
    write_packing_transposed,
    write_widening,
)
from cotswold.kernels.microkernels.job import ENTRY, JOB, LANE_TILE, ROW_TILE, TASK
from cotswold.kernels.microkernels.kinds import ProductKind, Tile, row_block_sizes

KINDS = ("product", "product_small_batch", "adjoint", "outer")
"""Kinds of kernels that support half precision."""


def write_half_kernel(kind: ProductKind, units: Units, tile: Tile, triple: str) -> ir.Module:
    """Return a module with one function, ``work(job)``, which runs tasks of the job until none is left."""
    assert kind.name in KINDS, f"there is no kernel for {units.dtype} that does {kind.name}"
    module = ir.Module(f"{kind.name}_{units.dtype}_{tile}")
    module.triple = triple
    functions = _Functions(module, kind, units, tile)
    with tasks(module, units.numbers, JOB["claim"]) as (w, job, number, scratch):
        task = TASK.record(w, w.pointer_field(job, JOB["task_table"]), number)
        if units.amx:
            amx.write_configuration(w)
        _Task(w, functions, kind, tile, job, task, scratch).write()
        if units.amx:
            amx.write_release(w)
    return module


class _Functions:
    """Tiles and packing functions of a kernel."""

    def __init__(self, module: ir.Module, kind: ProductKind, units: Units, tile: Tile) -> None:
        self.units = units
        self.packs = packs_a(kind, units)
        config = UnitTileConfig(kind.a_rows_adjacent, self.packs)
        self.tiles = self.fresh = None
        if not units.paired and not kind.pack_b:
            self.fresh = _tiles(module, units, tile, replace(config, fresh=True))
        if units.amx:
            self.tiles = _table(module, "tiles", amx.write_tiles(module, units))
        elif not kind.unpack_c or units.paired:
            self.tiles = _tiles(module, units, tile, config)
        packings = [write_packing(module, units, vectors) for vectors in range(1, tile.vectors + 1)]
        self.packings = _table(module, "packings", packings)
        self.transposed = write_packing_transposed(module, units) if kind.pack_b else None
        self.pack_rows = None
        if units.amx:
            self.pack_rows = amx.write_packing_by_rows(module, units, kind.a_rows_adjacent)
        elif packs_rows(kind, units):
            self.pack_rows = write_widening(module, units)
        numbers = ir.ArrayType(I64, len(row_block_sizes(tile)))
        self.heights = ir.GlobalVariable(module, numbers, "heights")
        self.heights.linkage, self.heights.global_constant = "internal", True
        self.heights.initializer = ir.Constant(numbers, list(row_block_sizes(tile)))


def _tiles(module: ir.Module, units: Units, tile: Tile, config: UnitTileConfig) -> ir.GlobalVariable:
    found, name = [], "fresh" if config.fresh else "tile"
    for rows in row_block_sizes(tile):
        for vectors in range(1, tile.vectors + 1):
            shape = Tile(rows, vectors)
            found.append(write_half_tile(module, f"{name}_{shape}_masked", units, shape, config, True))
        shape = Tile(rows, tile.vectors)
        found.append(write_half_tile(module, f"{name}_{shape}", units, shape, config, False))
    return _table(module, f"{name}s", found)


def _table(module: ir.Module, name: str, functions: list[ir.Function]) -> ir.GlobalVariable:
    table = ir.GlobalVariable(module, ir.ArrayType(POINTER, len(functions)), name)
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(table.value_type, [one.bitcast(POINTER) for one in functions])
    return table


class _Task:
    """Code generator of a task."""

    def __init__(
        self,
        w: FunctionBuilder,
        functions: _Functions,
        kind: ProductKind,
        tile: Tile,
        job: ir.Value,
        task: ir.Value,
        scratch: ir.Value,
    ) -> None:
        self.w, self.functions, self.kind, self.tile = w, functions, kind, tile
        self.units, self.lanes = functions.units, functions.units.lanes
        self.job, self.task, self.packed_b = job, task, scratch
        self.packed_a = w.element_pointer(scratch, w.field(job, JOB["packed_a"]))
        self.sums = w.element_pointer(scratch, w.field(job, JOB["sums"]))
        self.a, self.b, self.c = (
            w.element_pointer(w.pointer_field(job, operand), w.field(task, place))
            for operand, place in ((JOB["a"], TASK["a"]), (JOB["b"], TASK["b"]), (JOB["c"], TASK["c"]))
        )
        if kind.unpack_c:
            self.map, self.c = self.c, w.element_pointer(scratch, w.field(job, JOB["gradient"]))
        self.a_pitch, self.b_pitch = w.field(job, JOB["a_pitch"]), w.field(job, JOB["b_pitch"])
        table = w.pointer_field(job, JOB["offsets"])
        self.offsets = w.slot(table, w.field(task, TASK["offset"]))
        self.neurons = w.slot(table, w.field(task, TASK["neuron"]))
        self.entries, self.lane_tiles, self.row_tiles = task_tables(w, job, task)

    def write(self) -> None:
        """Generate the loops over groups of tiles of lanes and over chunks of entries."""
        w, task = self.w, self.task
        count, chunk = w.field(task, TASK["entries"]), w.field(self.job, JOB["k_block"])
        tiles, at_once = w.field(task, TASK["lane_tiles"]), lane_tiles(self.kind, self.units)
        chunks = w.b.sdiv(w.b.sub(w.b.add(count, chunk), integer(1)), chunk)
        chunks = w.b.select(w.b.icmp_signed(">", chunks, integer(0)), chunks, integer(1))
        self.keeps_sums = w.b.icmp_signed(">", chunks, integer(1))
        with loop(w, tiles, step=at_once) as group, loop(w, chunks) as part:
            self.group = group.index
            self.tiles_at_once = w.min_int(integer(at_once), w.b.sub(tiles, group.index))
            first = w.b.mul(part.index, chunk)
            self.entries_in_chunk = w.min_int(chunk, w.b.sub(count, first))
            self.chunk_entries = ENTRY.record(w, self.entries, first)
            self.part_index = part.index
            last_one = w.b.icmp_signed("==", w.b.add(part.index, integer(1)), chunks)
            self.final = w.b.zext(last_one, I64)
            if self.functions.fresh is None:
                with loop(w, self.tiles_at_once) as across:
                    self._write_packing_of_b(self._lane_tile(across.index))
            if self.functions.packs:
                self._write_panels()
            else:
                self._write_rows()
        if self.kind.unpack_c:
            self._write_scatter()

    def _write_scatter(self) -> None:
        """Transpose C from scratch, lanes last, to its map, rows last, one element at a time."""
        w = self.w
        pitch = w.field(self.job, JOB["scratch_pitch"])
        with loop(w, w.field(self.task, TASK["lanes"])) as lanes:
            place = w.element_pointer(self.map, w.field(self.neurons, lanes.index))
            with loop(w, w.field(self.job, JOB["images"]), w.element_pointer(self.c, lanes.index)) as rows:
                number = w.b.load(rows.values[0], typ=w.lanes.scalar, align=2)
                w.b.store(number, w.element_pointer(place, rows.index), align=2)
                rows.next = [w.element_pointer(rows.values[0], pitch)]

    def _lane_tile(self, number: ir.Value) -> LaneTile:
        """Return a tile of lanes, numbered from the first of the group."""
        w = self.w
        record = LANE_TILE.record(w, self.lane_tiles, w.b.add(self.group, number))
        lane, variant, last = LANE_TILE.load(w, record)
        vectors = w.min_int(w.b.add(variant, integer(1)), integer(self.tile.vectors))
        # A starts where the packed B of a whole group ends
        size = w.b.sdiv(w.field(self.job, JOB["packed_a"]), integer(lane_tiles(self.kind, self.units)))
        return LaneTile(
            number, lane, variant, last, vectors, w.element_pointer(self.packed_b, w.b.mul(number, size))
        )

    def _write_packing_of_b(self, tile: LaneTile) -> None:
        w, pitch = self.w, self.w.b.mul(tile.vectors, integer(self.lanes))
        if self.functions.transposed is None:
            source = w.element_pointer(self.b, tile.lane)
            rows = self._write_pack("b", source, self.b_pitch, tile.vectors, tile.last, tile.packed, pitch)
            self._write_zeros(tile, rows, pitch)
            return
        lanes = w.b.add(w.b.sub(pitch, integer(self.lanes)), tile.last)
        places = w.slot(self.neurons, tile.lane)
        arguments = [self.chunk_entries, self.entries_in_chunk, self.b, places, lanes, tile.packed, pitch]
        self._write_zeros(tile, w.b.call(self.functions.transposed, arguments), pitch)

    def _write_zeros(self, tile: LaneTile, rows: ir.Value, pitch: ir.Value) -> None:
        """Write the rows of zeros that AMX needs after packed B."""
        if self.units.amx:
            amx.write_zeros(self.w, unit_at(self.w, tile.packed, self.w.b.mul(rows, pitch)), pitch)

    def _write_pack(
        self,
        field: str,
        source: ir.Value,
        pitch: ir.Value,
        vectors: ir.Value,
        last: ir.Value,
        out: ir.Value,
        out_pitch: ir.Value,
    ) -> ir.Value:
        arguments = [
            self.chunk_entries,
            self.entries_in_chunk,
            integer(ENTRY[field]),
            source,
            pitch,
            last,
            out,
            out_pitch,
        ]
        return self._call(self.functions.packings, self.w.b.sub(vectors, integer(1)), I64, arguments)

    def _call(
        self, table: ir.GlobalVariable, number: ir.Value, kind: ir.Type, arguments: list[ir.Value]
    ) -> ir.Value:
        place = self.w.b.gep(table, [integer(0), number], source_etype=table.value_type)
        signature = ir.FunctionType(kind, [one.type for one in arguments])
        return self.w.b.call(self.w.b.load(place, typ=signature.as_pointer()), arguments)

    def _write_rows(self) -> None:
        """Generate the loops over tiles of lanes and of rows, for pairs of k adjacent in A."""
        w = self.w
        with loop(w, self.tiles_at_once) as across:
            lanes = self._lane_tile(across.index)
            with loop(w, w.field(self.task, TASK["row_tiles"])) as down:
                rows = self._row_tile(down.index)
                operands = [
                    self.chunk_entries,
                    self.entries_in_chunk,
                    w.element_pointer(self.a, rows.a),
                    self.a_pitch,
                ]
                self._write_any_tile(lanes, rows, operands, operands)

    def _write_panels(self) -> None:
        """The same with A packed or widened first, some tiles of rows at a time."""
        w, count = self.w, self.w.field(self.task, TASK["row_tiles"])
        with loop(w, count, step=panel_tiles(self.tile)) as panel:
            here = w.min_int(integer(panel_tiles(self.tile)), w.b.sub(count, panel.index))
            first, size = self._row_tile(panel.index).a, self.tile.rows * row_pitch(self.units)
            if self.functions.pack_rows is None:
                last = self._row_tile(w.b.add(panel.index, w.b.sub(here, integer(1))))
                end = w.b.add(last.a, self._height(last))
                terms = self._write_packing_of_a(first, w.b.sub(end, first))
            else:
                with loop(w, here, integer(0)) as down:
                    rows = self._row_tile(w.b.add(panel.index, down.index))
                    to = unit_at(w, self.packed_a, w.b.mul(down.index, integer(size)))
                    operands = [w.element_pointer(self.a, rows.a), self.a_pitch, self._height(rows), to]
                    arguments = [self.chunk_entries, self.entries_in_chunk, *operands]
                    down.next = [w.b.call(self.functions.pack_rows, arguments)]
                terms = down.values[0]
            with loop(w, self.tiles_at_once) as across:
                lanes = self._lane_tile(across.index)
                with loop(w, here) as down:
                    rows = self._row_tile(w.b.add(panel.index, down.index))
                    if self.functions.pack_rows is None:
                        packed = unit_at(w, self.packed_a, w.b.sub(rows.a, first))
                        ahead = w.element_pointer(
                            self._next_a(), w.b.mul(rows.a, w.b.mul(terms, integer(self.units.k)))
                        )
                        where = [packed, integer(panel_pitch(self.tile))]
                    else:
                        ahead = unit_at(w, self.packed_a, w.b.mul(down.index, integer(size)))
                        where = [ahead, integer(row_pitch(self.units))]
                    fresh = [self.chunk_entries, self.entries_in_chunk, *where]
                    first_operand = self._height(rows) if self.units.amx else ahead
                    self._write_any_tile(lanes, rows, [first_operand, terms, *where], fresh)

    def _height(self, rows: RowTile) -> ir.Value:
        table = self.functions.heights
        place = self.w.b.gep(table, [integer(0), rows.height], source_etype=table.value_type)
        return self.w.b.load(place, typ=I64)

    def _write_packing_of_a(self, first: ir.Value, rows: ir.Value) -> ir.Value:
        """Pack ``rows`` rows of A from ``first``; return the number of rows of pairs (k)."""
        w, widest = self.w, self.tile.vectors * self.lanes
        with loop(w, rows, integer(0), step=widest) as turn:
            left = w.min_int(w.b.sub(rows, turn.index), integer(widest))
            vectors = w.b.sdiv(w.b.add(left, integer(self.lanes - 1)), integer(self.lanes))
            last = w.b.sub(left, w.b.mul(w.b.sub(vectors, integer(1)), integer(self.lanes)))
            source = w.element_pointer(self.a, w.b.add(first, turn.index))
            out, pitch = unit_at(w, self.packed_a, turn.index), integer(panel_pitch(self.tile))
            turn.next = [self._write_pack("a", source, self.a_pitch, vectors, last, out, pitch)]
        return turn.values[0]

    def _next_a(self) -> ir.Value:
        """Address of A after this chunk, in this task or the next; only for prefetches."""
        w = self.w
        last = ENTRY.record(w, self.chunk_entries, w.b.sub(self.entries_in_chunk, integer(1)))
        # without an entry, any memory may be read as one
        record = w.b.select(w.b.icmp_signed(">", self.entries_in_chunk, integer(0)), last, self.task)
        return w.element_pointer(
            self.a, w.b.add(w.field(record, ENTRY["a"]), w.field(record, ENTRY["ahead"]))
        )

    def _row_tile(self, number: ir.Value) -> RowTile:
        w = self.w
        record = ROW_TILE.record(w, self.row_tiles, number)
        return RowTile(number, *ROW_TILE.load(w, record))

    def _write_any_tile(
        self, lanes: LaneTile, rows: RowTile, operands: list[ir.Value], fresh: list[ir.Value]
    ) -> None:
        """Call a tile; the first of each tile of lanes packs B, unless it is packed already."""
        w, functions = self.w, self.functions
        if functions.fresh is None or functions.tiles is None:
            self._write_tile(functions.fresh or functions.tiles, lanes, rows, operands)
            return
        is_first = w.b.icmp_signed("==", rows.number, integer(0))
        with w.b.if_else(is_first) as (first, others):
            with first:
                self._write_tile(functions.fresh, lanes, rows, fresh)
            with others:
                self._write_tile(functions.tiles, lanes, rows, operands)

    def _write_tile(
        self, tiles: ir.GlobalVariable, lanes: LaneTile, rows: RowTile, operands: list[ir.Value]
    ) -> None:
        w = self.w
        which = w.b.add(w.b.mul(rows.height, integer(self.tile.vectors + 1)), lanes.variant)
        before = w.b.mul(lanes.number, w.field(self.task, TASK["row_tiles"]))
        place = w.b.select(self.keeps_sums, w.b.add(before, rows.number), integer(0))
        size = integer(self.tile.rows * self.tile.vectors * self.lanes)
        sums = unit_at(w, self.sums, w.b.mul(place, size))
        arguments = [*operands, lanes.packed, w.element_pointer(self.b, lanes.lane), self.b_pitch]
        arguments += [sums, w.element_pointer(self.c, lanes.lane)]
        arguments += [w.slot(self.offsets, rows.row), lanes.last, self.part_index, self.final]
        self._call(tiles, which, VOID, arguments)
