from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import binding as llvm
from tests.conftest import FUZZ
from tests.support.kernels.operations import (
    OPERATIONS,
    Pair,
    amx_tiles,
    forced,
    operands,
    processors,
    run,
    tuning_class,
)
from tests.support.kernels.processors import ARM
from tests.support.ops import reference
from tests.support.ops.layers import LAYERS, ODD, PLAIN, layers, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import available
from cotswold.kernels.compile import engine
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels import half_layout, half_units
from cotswold.kernels.microkernels.half_driver import KINDS as PAIR_KINDS
from cotswold.kernels.microkernels.half_driver import write_half_kernel
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import AMX_TILE, KINDS, Tile, row_block_sizes
from cotswold.kernels.products import autotune
from cotswold.kernels.products.problem import Overrides
from cotswold.ops import batched

HOST = this_processor()
PAIRED = Processor(
    "avx512", "znver4", "+avx512f,+avx512bf16,+avx512bw,+avx512vl,+avx512dq", "x86_64-unknown-linux-gnu"
)
CUT = BlockLocal(MapShape(65, 2, 8), Window(2), Window(5, 2, 1, 0), rows=1, columns=2, depth=135)
"""Field rows, and neurons of a block's row, that are divided into several entries, some of an odd k."""
CHUNKS = [1, 16, 256, 1024]


@dataclass(frozen=True)
class Way:
    """A type, a processor and a tile."""

    dtype: torch.dtype
    processor: Processor
    tile: tuple[int, int]

    def forced(self, threads: int = 1, few: bool | None = None) -> Overrides:
        """Return the overrides that force this kernel."""
        return forced(*self.tile, threads, self.processor, few)


WAYS = [
    Way(dtype, processor, tile)
    for processor in processors()
    for dtype, tiles in (
        (
            torch.bfloat16,
            [(2, 3), (5, 3), (8, 3), (12, 2), *amx_tiles(processor)]
            if processor is HOST
            else [(5, 3), (6, 2)],
        ),
        (torch.float16, [] if processor is HOST else [(4, 3), (6, 2)]),
    )
    for tile in tiles
]
"""Pairs on this processor, if it supports them; single numbers on one with narrower vectors."""
SETTINGS = st.tuples(st.sampled_from(WAYS), st.sampled_from(CHUNKS))
ODD_TILES = [
    pytest.param(processor, tile, id=f"{processor.isa}-{tile[0]}x{tile[1]}")
    for processor in processors()
    for tile in [(5, 3), *amx_tiles(processor)]
]
"""A tile of no even size, and that of AMX, on every processor."""
IMAGES = st.sampled_from([1, 2, 3, 15, 16, 17, 33, 48, 95, 131, 209])


@contextmanager
def chunks_of(k: int) -> Iterator[None]:
    """Make kernels pack about ``k`` values at a time."""
    usual = half_layout.CHUNK
    try:
        half_layout.CHUNK = k
        yield
    finally:
        half_layout.CHUNK = usual


def wide(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """Return the operation in float64 on the same numbers; NaN for weights that meet only padding."""
    first, second = (x.to(torch.float64) for x in pair)
    if operation == "product":
        return reference.local_product(first, second, layer)
    if operation == "adjoint":
        return reference.local_adjoint(first, second, layer)
    gradient = reference.local_outer(first, second, layer)
    seen = reference.local_outer(torch.ones_like(first), torch.ones_like(second), layer) > 0
    return torch.where(seen, gradient, torch.full_like(gradient, float("nan")))


def whole_numbers(
    operation: str, layer: BlockLocal, images: int, dtype: torch.dtype = torch.bfloat16
) -> Pair:
    """Return operands whose products and sums are exact in float32."""
    first, second = operands(operation, layer, images, torch.float64)
    return tuple((4 * x).round().clamp(-8, 8).to(dtype) for x in (first, second))  # type: ignore[return-value]  # two


def exact(values: Tensor, expected: Tensor) -> None:
    """Check equality with the sums, rounded once."""
    rounded = expected.to(torch.float32).to(values.dtype)
    torch.testing.assert_close(values, rounded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES, SETTINGS)
@settings(max_examples=60)
def test_sums_are_exact_in_float32_and_rounded_once_to_the_nearest_even(
    operation: str, layer: BlockLocal, images: int, setting: tuple[Way, int]
) -> None:
    way, chunk = setting
    pair = whole_numbers(operation, layer, images, way.dtype)
    with chunks_of(chunk):
        exact(run(operation, layer, pair, way.forced()), wide(operation, layer, pair))


@given(layers(), IMAGES, SETTINGS, st.integers(1, 3))
@settings(max_examples=40)
def test_neurons_in_the_lanes_give_the_same_sums(
    layer: BlockLocal, images: int, setting: tuple[Way, int], threads: int
) -> None:
    way, chunk = setting
    pair = whole_numbers("product", layer, images, way.dtype)
    with chunks_of(chunk):
        found = run("product", layer, pair, way.forced(threads, few=True))
    exact(found, wide("product", layer, pair))


@pytest.mark.parametrize(("processor", "tile"), ODD_TILES)
def test_many_neurons_in_the_lanes_give_the_same_sums(processor: Processor, tile: tuple[int, int]) -> None:
    for images in (1, 3, 16):
        pair = whole_numbers("product", CUT, images)
        setting = forced(*tile, processor=processor, few=True)
        exact(run("product", CUT, pair, setting), wide("product", CUT, pair))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("images", [1, 17, 131])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("processor", "tile"), ODD_TILES)
def test_stretches_of_odd_length_and_panels_of_many_rows_are_exact(
    processor: Processor, tile: tuple[int, int], operation: str, images: int, chunk: int
) -> None:
    pair = whole_numbers(operation, CUT, images)
    with chunks_of(chunk):
        found = run(operation, CUT, pair, forced(*tile, processor=processor))
    exact(found, wide(operation, CUT, pair))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("processor", "tile"), ODD_TILES)
def test_more_images_than_an_entry_or_a_group_of_tiles_holds_are_exact(
    processor: Processor, tile: tuple[int, int], operation: str
) -> None:
    pair = whole_numbers(operation, PLAIN, 523)
    for chunk in CHUNKS:
        with chunks_of(chunk):
            found = run(operation, PLAIN, pair, forced(*tile, processor=processor))
        exact(found, wide(operation, PLAIN, pair))


@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES, SETTINGS)
@settings(max_examples=40)
def test_results_agree_with_float64_within_the_rounding_of_half_precision(
    operation: str, layer: BlockLocal, images: int, setting: tuple[Way, int]
) -> None:
    way, _ = setting
    pair = operands(operation, layer, images, way.dtype)
    expected = wide(operation, layer, pair)
    atol = 2**-16 * max(1.0, float(expected.nan_to_num().abs().max()))
    values = run(operation, layer, pair, way.forced()).to(torch.float64)
    rounding = torch.finfo(way.dtype).eps
    torch.testing.assert_close(values, expected, rtol=rounding, atol=atol, equal_nan=True)


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES, SETTINGS)
@settings(max_examples=30)
def test_any_number_of_threads_tile_and_chunk_give_the_same_numbers(
    operation: str, layer: BlockLocal, images: int, setting: tuple[Way, int]
) -> None:
    way, chunk = setting
    pair = operands(operation, layer, images, way.dtype)
    is_amx = Tile(*way.tile) == AMX_TILE  # its sums depend on the chunk
    with chunks_of(chunk if is_amx else half_layout.CHUNK):
        plainest = run(
            operation,
            layer,
            pair,
            way.forced() if is_amx else forced(1, 1, processor=way.processor, few=False),
        )
    for threads in (1, 2, 3):
        with chunks_of(chunk):
            values = run(operation, layer, pair, way.forced(threads))
        torch.testing.assert_close(values, plainest, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("processor", "tile"), ODD_TILES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [*LAYERS, CUT])
def test_nan_and_infinity_reach_exactly_what_they_are_multiplied_into(
    layer: BlockLocal, value: float, processor: Processor, tile: tuple[int, int]
) -> None:
    setting = forced(*tile, processor=processor)
    x = random_map(layer.input, 3).abs().add(0.5).to(torch.bfloat16)
    filters = random_weights(layer).abs().add(0.5).to(torch.bfloat16)
    place = (1, layer.input.channels - 1, layer.input.height - 1, layer.input.width - 1)
    x[place] = value
    mark = torch.zeros(x.shape, dtype=torch.float64)
    mark[place] = 1.0
    touched = reference.local_product(mark, torch.ones(layer.filters_shape, dtype=torch.float64), layer) > 0
    out = run("product", layer, (ops.images_last(x), filters), setting)
    assert torch.equal(~out.isfinite(), touched)
    assert torch.equal(out.isnan() if value != value else out == value, touched)
    y = torch.ones(out.shape, dtype=torch.bfloat16)
    gradient = run("outer", layer, (ops.images_last(y), ops.images_last(x)), setting)
    met = reference.local_outer(torch.ones(y.shape, dtype=torch.float64), mark, layer) > 0
    assert torch.equal((gradient.isnan() if value != value else gradient == value) & met, met)
    last = torch.zeros(y.shape, dtype=torch.float64)
    last[:, -1, -1, -1] = 1.0
    y[:, -1, -1, -1] = value
    back = run("adjoint", layer, (ops.images_last(y), filters), setting)
    reached = reference.local_adjoint(last, filters.to(torch.float64), layer) > 0
    assert torch.equal(~back.isfinite(), reached)


@pytest.mark.soak
@pytest.mark.parametrize("seed", ["first", "second"])
def test_nothing_is_touched_before_or_beyond_an_operand_or_scratch(seed: str) -> None:
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kernels.guarded_pairs", seed, str(FUZZ * 100)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120 + FUZZ * 100,
    )
    told = done.returncode, done.stdout.splitlines()[-1:], done.stderr[-2000:]
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), told


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_processor_has_kernels_for_half_precision(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(available.VARIABLE, raising=False)
    for name in OPERATIONS:
        monkeypatch.delattr(batched, name)  # several times slower
    x, y = (random_map(shape, 5).to(dtype) for shape in (ODD.input, ODD.output))
    filters = random_weights(ODD).to(dtype)
    for function, first, second in (
        (ops.local_product, x, filters),
        (ops.local_adjoint, y, filters),
        (ops.local_outer, y, x),
    ):
        found = function(first, second, ODD)
        expected = function(first.double(), second.double(), ODD)
        assert found.dtype == dtype
        rounding = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(found.double(), expected, rtol=1.01 * rounding, atol=1e-4)


def test_a_processor_must_have_the_instructions() -> None:
    assert half_units.available(PAIRED)
    assert not half_units.available(Processor("avx512", "x86-64-v4", "", PAIRED.triple))
    assert not half_units.available(
        Processor("avx512", "znver4", "+avx512bw,+avx512vl,-avx512bf16", PAIRED.triple)
    )
    assert not half_units.available(ARM)


MULTIPLIES = ("vdpbf16ps", "vfmadd")


@dataclass(frozen=True)
class Turn:
    """The inner loop of a tile, and whether a register other than the stack's points at the stack."""

    lines: list[str]
    framed: bool

    @property
    def multiplications(self) -> int:
        return sum(one.startswith(MULTIPLIES) for one in self.lines)

    @property
    def spills(self) -> list[str]:
        """Vectors that pass through the stack."""
        stack = r"\(%r[sb]p.*mm|mm.*\(%r[sb]p" if self.framed else r"\(%rsp.*mm|mm.*\(%rsp"
        return [one for one in self.lines if re.search(stack, one)]


def turns(text: str) -> dict[str, Turn]:
    """Return the innermost loop that multiplies half_units, of each tile in assembly."""
    found: dict[str, Turn] = {}
    tile, lines, labels = "", list[str](), dict[str, int]()
    for line in text.splitlines():
        label = re.match(r"^([.\w$]+):", line)
        if label:
            if label[1].startswith(("tile_", "fresh_")):
                tile, lines, labels = label[1], [], {}
            labels[label[1]] = len(lines)
        elif line.startswith("\t") and not line.strip().startswith("."):
            lines.append(line.strip())
            jump = re.match(r"j\w+\s+([.\w$]+)$", lines[-1])
            if tile and tile not in found and jump and jump[1] in labels:
                body = lines[labels[jump[1]] :]
                if any(one.startswith(MULTIPLIES) for one in body):
                    found[tile] = Turn(body, "movq\t%rsp, %rbp" in lines)
    return found


WITHOUT = Processor("avx2", "znver3", "", PAIRED.triple)
FORMS = [
    (processor, tile, kind)
    for processor in (PAIRED, WITHOUT)
    for kind in PAIR_KINDS
    for tile in dict.fromkeys(
        one for few in (False, True) for one in autotune.candidates(processor, tuning_class(few))
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "tile", "kind"), FORMS, ids=lambda one: getattr(one, "isa", str(one)))
def test_the_inner_loops_of_candidates_keep_all_vectors_in_registers(
    processor: Processor, tile: Tile, kind: str
) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    units = Units.for_dtype("bfloat16", processor)
    assert units.paired == (processor is PAIRED)
    module = write_half_kernel(KINDS[kind], units, tile, processor.triple)
    found = turns(engine.assembly(module, processor))
    shapes = [(rows, vectors) for rows in row_block_sizes(tile) for vectors in range(1, tile.vectors + 1)]
    names = {f"tile_{Tile(*shape)}_masked": shape for shape in shapes}
    names |= {f"tile_{Tile(rows, tile.vectors)}": (rows, tile.vectors) for rows in row_block_sizes(tile)}
    if kind == "product_small_batch" and not units.paired:
        names = {}  # all of its tiles pack B
    elif kind != "outer" and not units.paired:
        assert found.keys() >= {name.replace("tile", "fresh") for name in names}
    assert found.keys() >= names.keys()
    together = 2 if kind in ("adjoint", "outer") and not units.paired else 1
    for name, (rows, vectors) in names.items():
        assert found[name].multiplications == rows * vectors * together, (name, found[name])
    if together == 2:  # LLVM leaves one or two sums of these on the stack
        names = {name: shape for name, shape in names.items() if shape not in ((4, 3), (8, 1), (12, 1))}
    assert {name: found[name].spills for name in names if found[name].spills} == {}


@pytest.mark.parametrize("kind", ["adjoint", "outer"])
def test_a_factor_of_float16_is_widened_once_for_many_lanes(kind: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    units = Units.for_dtype("float16", WITHOUT)
    found = turns(engine.assembly(write_half_kernel(KINDS[kind], units, Tile(6, 2), WITHOUT.triple), WITHOUT))
    inner = found["tile_6x2"]
    assert inner.multiplications == 48 and inner.spills == []
    assert not [line for line in inner.lines if line.startswith("vcvtph2ps")]


def test_a_tile_too_large_for_the_registers_is_seen_to_spill() -> None:
    module = write_half_kernel(
        KINDS["product"], Units.for_dtype("bfloat16", PAIRED), Tile(12, 3), PAIRED.triple
    )
    assert turns(engine.assembly(module, PAIRED))["tile_12x3"].spills
