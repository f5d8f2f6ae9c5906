from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pytest
from llvmlite import binding as llvm
from llvmlite import ir
from tests.support.kernels.operations import tuning_class
from tests.support.kernels.processors import ARM

from cotswold.kernels.compile import engine, library
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps import layout, max_pooling, normalisation, norms, pooling
from cotswold.kernels.maps.max_pooling import MaxPass
from cotswold.kernels.maps.normalisation_rows import GRADIENT, MEASURE, NORMALISE
from cotswold.kernels.maps.pooling_block import PENALTY, POOL, SLOPE, PoolConfig
from cotswold.kernels.microkernels.driver import write_kernel
from cotswold.kernels.microkernels.kinds import KINDS, Tile, row_block_sizes
from cotswold.kernels.microkernels.update import WIDEST
from cotswold.kernels.products import autotune

AVX512 = Processor("avx512", "x86-64-v4", "", "x86_64-unknown-linux-gnu")
AVX2 = Processor("avx2", "x86-64-v3", "", "x86_64-unknown-linux-gnu")
MACHINES = [AVX512, AVX2, ARM]
LABEL = re.compile(r"^([.\w$]+):")
JUMP = re.compile(r"^\s+(?:j\w+|b|b\.\w+|cbnz|cbz)\s+(?:\w+,\s*)?([.\w$]+)\s*$")
MULTIPLY_ADD = re.compile(r"^\s+(?:vfn?madd\w+p[sd]|fmla)\s")
FRAME = re.compile(r"movq\s+%rsp, %rbp|(?:mov|add)\s+x29, sp")
"""Instructions after which these two registers point at the stack."""
STACK = {False: re.compile(r"\(%rsp|\[sp"), True: re.compile(r"\(%(?:rsp|rbp)|\[(?:sp|x29)")}


MOVE = re.compile(r"\s*(?:vmov\w+\s+%[xyz]mm\d+, %[xyz]mm\d+|mov\s+v\d+\.\w+, v\d+\.\w+)$")


@dataclass(frozen=True)
class Turn:
    """The inner loop of a tile: instructions, its multiply-adds, and its accesses to the stack."""

    tile: str
    lines: tuple[str, ...]
    framed: bool

    @property
    def multiply_adds(self) -> int:
        return sum(bool(MULTIPLY_ADD.match(line)) for line in self.lines)

    @property
    def terms(self) -> int:
        """Number of k that are written out."""
        rows, vectors = map(int, re.findall(r"\d+", self.tile)[:2])
        return self.multiply_adds // (rows * vectors)

    @property
    def spills(self) -> list[str]:
        return [line.strip() for line in self.lines if STACK[self.framed].search(line)]

    @property
    def stores(self) -> list[str]:
        """Stores to the stack; the other spills read it, like constants."""
        return [line for line in self.spills if line.startswith("st") or line.endswith(")")]

    @property
    def moves(self) -> list[str]:
        """Moves from one vector register to another."""
        return [line.strip() for line in self.lines if MOVE.match(line)]


def loops(text: str) -> dict[str, list[Turn]]:
    """Return the loops that multiply, inside out, of every tile and update in assembly."""
    found: dict[str, list[Turn]] = {}
    name, lines = "", list[str]()
    labels: dict[str, int] = {}
    for line in text.splitlines():
        code = re.split(r"\s(?:##?|//)\s", line)[0].rstrip()
        label = LABEL.match(code)
        if label:
            if not label[1].startswith((".", "$")):
                name, lines, labels = label[1], [], {}
            labels[label[1]] = len(lines)
            continue
        if code.strip().startswith((".", "#", "//")) or not code.strip():
            continue
        lines.append(code)
        jump = JUMP.match(code)
        if name.startswith(("tile_", "update_")) and jump and jump[1] in labels:
            framed = any(FRAME.search(one) for one in lines)
            turn = Turn(name, tuple(lines[labels[jump[1]] :]), framed)
            if turn.multiply_adds:
                found.setdefault(name, []).append(turn)
    return found


def turns(text: str) -> dict[str, Turn]:
    """Return the innermost loop that multiplies, of every tile in assembly."""
    return {name: inside[0] for name, inside in loops(text).items() if name.startswith("tile_")}


def tiles(processor: Processor) -> list[Tile]:
    """Return the candidate tiles of a processor."""
    both = (autotune.candidates(processor, tuning_class(narrow)) for narrow in (True, False))
    return sorted({tile for found in both for tile in found}, key=str)


@pytest.fixture(scope="module", autouse=True)
def _every_target() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


LARGEST = {
    processor.isa: max(tiles(processor), key=lambda tile: (tile.rows * tile.vectors, tile.vectors))
    for processor in MACHINES
}
"""The tile with the most sums of each processor, which spills first."""
HIGHEST = {
    processor.isa: max(tiles(processor), key=lambda tile: (tile.rows, tile.vectors)) for processor in MACHINES
}
"""The tile with the most rows, whose kernel has the most tiles and addresses."""


def is_short(processor: Processor, kind: str, dtype: str, tile: Tile) -> bool:
    """Decide whether a case is a short test; the others are long."""
    high = (kind, dtype) == ("adjoint", "float32") and tile == HIGHEST[processor.isa]
    return high or tile == LARGEST[processor.isa]


CASES = [
    pytest.param(
        processor,
        kind,
        dtype,
        tile,
        id=f"{processor.isa}-{kind}-{dtype}-{tile}",
        marks=() if is_short(processor, kind, dtype, tile) else pytest.mark.soak,
    )
    for processor in MACHINES
    for kind in ("product", "adjoint", "step", "product_tanh", "product_sigmoid")
    for dtype in ("float32", "float64")
    for tile in tiles(processor)
    if KINDS[kind].epilogue == "" or dtype == "float32"
]
"""Kinds of kernels: ``product_small_batch`` has the tiles of ``product``, and ``outer`` those of ``adjoint``.
"""


@lru_cache(maxsize=256)
def written(processor: Processor, kind: str, dtype: str, tile: Tile) -> dict[str, Turn]:
    """Return the inner loops of a kernel."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    return turns(engine.assembly(write_kernel(KINDS[kind], lanes, tile, processor.triple), processor))


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "kind", "dtype", "tile"), CASES)
def test_an_inner_loop_has_as_many_multiply_adds_as_the_tile_has_vectors(
    processor: Processor, kind: str, dtype: str, tile: Tile
) -> None:
    whole = {f"tile_{Tile(rows, tile.vectors)}": rows * tile.vectors for rows in row_block_sizes(tile)}
    masked = {
        f"tile_{Tile(rows, vectors)}_masked": rows * vectors
        for rows in row_block_sizes(tile)
        for vectors in range(1, tile.vectors + 1)
    }
    found = written(processor, kind, dtype, tile)
    assert found.keys() == {**whole, **masked}.keys()
    for name, count in {**whole, **masked}.items():
        # several turns may be written out
        assert found[name].multiply_adds % count == 0, (name, found[name].lines)


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "kind", "dtype", "tile"), CASES)
def test_the_inner_loops_of_candidates_keep_everything_in_registers(
    processor: Processor, kind: str, dtype: str, tile: Tile
) -> None:
    found = written(processor, kind, dtype, tile).values()
    assert {one.tile: one.spills for one in found if one.spills and "masked" not in one.tile} == {}
    assert {one.tile: one.moves for one in found if one.moves and "masked" not in one.tile} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "kind", "dtype", "tile"), CASES)
def test_where_lanes_end_in_a_mask_it_is_at_most_three_sums_and_the_mask_that_have_no_register(
    processor: Processor, kind: str, dtype: str, tile: Tile
) -> None:
    most = 0 if processor is AVX512 else 9  # it has registers for masks; a sum is read and written
    most += processor is AVX2 and KINDS[kind].epilogue != ""  # polynomials have constants
    found = written(processor, kind, dtype, tile).values()
    assert {one.tile: one.spills for one in found if len(one.spills) > most * one.terms} == {}


@pytest.mark.parametrize("kind", ["product", "adjoint"])
@pytest.mark.parametrize(("processor", "tile"), [(AVX512, Tile(8, 3)), (AVX2, Tile(6, 2))])
def test_a_term_costs_its_loads_and_multiply_adds_and_few_other_instructions(
    processor: Processor, tile: Tile, kind: str
) -> None:
    found = written(processor, kind, "float32", tile)[f"tile_{tile}"]
    assert found.terms == 4
    needed = tile.vectors + tile.rows + tile.rows * tile.vectors
    assert len(found.lines) <= found.terms * (needed + 5), found.lines
    assert sum("prefetch" in line for line in found.lines) == (4 if kind == "product" else 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("processor", MACHINES, ids=lambda one: one.isa)
def test_the_passes_of_a_step_write_nothing_to_the_stack_and_read_it_only_where_registers_are_few(
    processor: Processor, dtype: str
) -> None:
    lanes = Lanes(dtype, processor.lanes(dtype))
    kernel = write_kernel(KINDS["step"], lanes, Tile(4, 1), processor.triple)
    found = loops(engine.assembly(kernel, processor))
    for vectors in range(1, WIDEST + 1):
        passes = found[f"update_{vectors}"][:4]  # more is what jumps around them
        if processor is not ARM:  # which has branches for masks, and parts of a pass more than once
            assert [one.multiply_adds for one in passes] == [vectors, 3 * vectors, vectors, vectors]
        assert [one.stores for one in passes] == [[]] * 4
        # constants of the second pass
        most = [0, 2 * vectors if processor is AVX2 else 0, 0, 0]
        assert all(len(one.spills) <= count for one, count in zip(passes, most, strict=True)), vectors


def test_a_tile_too_large_for_the_registers_is_seen_to_spill() -> None:
    kernel = write_kernel(KINDS["product"], Lanes("float32", 8), Tile(8, 3), AVX2.triple)
    assert turns(engine.assembly(kernel, AVX2))["tile_8x3"].spills


def over_maps(dtype: str, processor: Processor) -> None:
    """Request every kernel that passes over maps and filters."""
    for to_last in (False, True):
        layout.kernel(dtype, processor, to_last)
    norms.kernel(dtype, processor)
    for which in (MaxPass(False, relu=True), MaxPass(False, places=False), MaxPass(True)):
        max_pooling.kernel(which, dtype, processor)
    for kind in (POOL, SLOPE, PENALTY):
        for size in (3, 5):
            form = PoolConfig(size, rows=2, vectors=1, stream=False)
            pooling.kernel(kind, form, dtype, processor)
    for step in (NORMALISE, MEASURE, GRADIENT):
        for size in (3, 5):
            normalisation.kernel(step, dtype, size, processor)


@pytest.mark.soak
@pytest.mark.parametrize("processor", MACHINES, ids=lambda one: one.isa)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_over_maps_are_vectors_on_every_processor_and_each_has_a_name_of_its_own(
    processor: Processor, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[tuple[object, ...], str] = {}

    def address(
        name: tuple[object, ...], processor: Processor, write: Callable[[], ir.Module], is_right: object
    ) -> int:
        assert name not in written, "two kernels of one name"
        written[name] = engine.assembly(write(), processor)
        return 0

    monkeypatch.setattr(library, "address", address)
    over_maps(dtype, processor)
    register = {"avx512": r"%zmm\d", "avx2": r"%ymm\d", "neon": r"\bv\d+\.(4s|2d)"}[processor.isa]
    assert all(re.search(register, text) for text in written.values())
    assert len(set(written.values())) == len(written)
