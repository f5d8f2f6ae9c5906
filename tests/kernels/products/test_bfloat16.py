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
from tests.kernels.operations import OPERATIONS, Pair, forced, operands, run
from tests.kernels.processors import ARM
from tests.ops import reference
from tests.ops.layers import DEEP, LAYERS, ODD, PLAIN, WIDE, layers, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import available
from cotswold.kernels.compile import engine
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels import pair_driver, pairs
from cotswold.kernels.microkernels.driver import KINDS
from cotswold.kernels.microkernels.pair_driver import KINDS as PAIR_KINDS
from cotswold.kernels.microkernels.pair_driver import write_pair_kernel
from cotswold.kernels.microkernels.tile import Tile, heights
from cotswold.kernels.products import choice
from cotswold.ops import batched, widened

HOST = this_processor()
needs_instructions = pytest.mark.skipif(
    HOST is None or not pairs.available(HOST), reason="this processor does not multiply pairs of bfloat16"
)
PAIRED = Processor(
    "avx512", "znver4", "+avx512f,+avx512bf16,+avx512bw,+avx512vl,+avx512dq", "x86_64-unknown-linux-gnu"
)
CUT = BlockLocal(MapShape(65, 2, 8), Window(2), Window(5, 2, 1, 0), rows=1, columns=2, depth=135)
"""Field rows, and neurons of a block's row, that are cut into several entries, some of an odd k."""
TILES = [(1, 1), (5, 3), (8, 3), (24, 1)] + ([(2, 3), (6, 4), (12, 2)] if FUZZ > 1 else [])
CHUNKS = [1, 16, 256, 1024]
SETTINGS = st.tuples(st.sampled_from(TILES), st.sampled_from(CHUNKS))
IMAGES = st.sampled_from([1, 2, 3, 15, 16, 17, 33, 48, 95, 131, 209])


@contextmanager
def chunks_of(k: int) -> Iterator[None]:
    """Kernels that pack about so many k at a time."""
    usual = pair_driver.CHUNK
    try:
        pair_driver.CHUNK = k
        yield
    finally:
        pair_driver.CHUNK = usual


def wide(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """The operation in float64, of the same numbers; NaN for weights that meet only padding."""
    first, second = (x.to(torch.float64) for x in pair)
    if operation == "product":
        return reference.local_product(first, second, layer)
    if operation == "adjoint":
        return reference.local_adjoint(first, second, layer)
    gradient = reference.local_outer(first, second, layer)
    seen = reference.local_outer(torch.ones_like(first), torch.ones_like(second), layer) > 0
    return torch.where(seen, gradient, torch.full_like(gradient, float("nan")))


def whole_numbers(operation: str, layer: BlockLocal, images: int) -> Pair:
    """Operands whose products and sums float32 holds without rounding."""
    first, second = operands(operation, layer, images, torch.float64)
    return tuple((4 * x).round().clamp(-8, 8).to(torch.bfloat16) for x in (first, second))  # type: ignore[return-value]  # two


def exact(values: Tensor, expected: Tensor) -> None:
    """Equal to the sums, rounded once."""
    rounded = expected.to(torch.float32).to(torch.bfloat16)
    torch.testing.assert_close(values, rounded, rtol=0, atol=0, equal_nan=True)


@needs_instructions
@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES, SETTINGS)
@settings(max_examples=60)
def test_sums_are_exact_in_float32_and_rounded_once_to_the_nearest_even(
    operation: str, layer: BlockLocal, images: int, setting: tuple[tuple[int, int], int]
) -> None:
    pair, (tile, chunk) = whole_numbers(operation, layer, images), setting
    with chunks_of(chunk):
        exact(run(operation, layer, pair, forced(*tile)), wide(operation, layer, pair))


@needs_instructions
@given(layers(), IMAGES, SETTINGS, st.integers(1, 3))
@settings(max_examples=40)
def test_neurons_in_the_lanes_give_the_same_sums(
    layer: BlockLocal, images: int, setting: tuple[tuple[int, int], int], threads: int
) -> None:
    pair, (tile, chunk) = whole_numbers("product", layer, images), setting
    with chunks_of(chunk):
        found = run("product", layer, pair, forced(*tile, threads, few=True))
    exact(found, wide("product", layer, pair))


@needs_instructions
def test_many_neurons_in_the_lanes_give_the_same_sums() -> None:
    for images in (1, 3, 16):
        pair = whole_numbers("product", CUT, images)
        exact(run("product", CUT, pair, forced(8, 3, few=True)), wide("product", CUT, pair))


@needs_instructions
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("images", [1, 17, 131])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_stretches_of_odd_length_and_panels_of_many_rows_are_exact(
    operation: str, images: int, chunk: int
) -> None:
    pair = whole_numbers(operation, CUT, images)
    with chunks_of(chunk):
        exact(run(operation, CUT, pair, forced(8, 3)), wide(operation, CUT, pair))


@needs_instructions
@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_images_than_an_entry_or_a_group_of_tiles_holds_are_exact(operation: str) -> None:
    pair = whole_numbers(operation, PLAIN, 523)
    for chunk in CHUNKS:
        with chunks_of(chunk):
            exact(run(operation, PLAIN, pair, forced(8, 3)), wide(operation, PLAIN, pair))


@needs_instructions
@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES)
@settings(max_examples=40)
def test_results_agree_with_float64_within_the_rounding_of_bfloat16(
    operation: str, layer: BlockLocal, images: int
) -> None:
    pair = operands(operation, layer, images, torch.bfloat16)
    expected = wide(operation, layer, pair)
    atol = 2**-16 * max(1.0, float(expected.nan_to_num().abs().max()))
    values = run(operation, layer, pair).to(torch.float64)
    torch.testing.assert_close(values, expected, rtol=2**-7, atol=atol, equal_nan=True)


@needs_instructions
@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("operation", OPERATIONS)
@given(layers(), IMAGES, SETTINGS)
@settings(max_examples=30)
def test_any_number_of_threads_tile_and_chunk_give_the_same_numbers(
    operation: str, layer: BlockLocal, images: int, setting: tuple[tuple[int, int], int]
) -> None:
    pair, (tile, chunk) = operands(operation, layer, images, torch.bfloat16), setting
    plainest = run(operation, layer, pair, forced(1, 1, few=False))
    for threads in (1, 2, 3):
        with chunks_of(chunk):
            values = run(operation, layer, pair, forced(*tile, threads))
        torch.testing.assert_close(values, plainest, rtol=0, atol=0, equal_nan=True)


@needs_instructions
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layer", [*LAYERS, CUT])
def test_nan_and_infinity_reach_exactly_what_they_are_multiplied_into(
    layer: BlockLocal, value: float
) -> None:
    x = random_map(layer.input, 3).abs().add(0.5).to(torch.bfloat16)
    filters = random_weights(layer).abs().add(0.5).to(torch.bfloat16)
    place = (1, layer.input.channels - 1, layer.input.height - 1, layer.input.width - 1)
    x[place] = value
    mark = torch.zeros(x.shape, dtype=torch.float64)
    mark[place] = 1.0
    touched = reference.local_product(mark, torch.ones(layer.filters_shape, dtype=torch.float64), layer) > 0
    out = run("product", layer, (ops.images_last(x), filters))
    assert torch.equal(~out.isfinite(), touched)
    assert torch.equal(out.isnan() if value != value else out == value, touched)
    y = torch.ones(out.shape, dtype=torch.bfloat16)
    gradient = run("outer", layer, (ops.images_last(y), ops.images_last(x)))
    met = reference.local_outer(torch.ones(y.shape, dtype=torch.float64), mark, layer) > 0
    assert torch.equal((gradient.isnan() if value != value else gradient == value) & met, met)
    last = torch.zeros(y.shape, dtype=torch.float64)
    last[:, -1, -1, -1] = 1.0
    y[:, -1, -1, -1] = value
    back = run("adjoint", layer, (ops.images_last(y), filters))
    reached = reference.local_adjoint(last, filters.to(torch.float64), layer) > 0
    assert torch.equal(~back.isfinite(), reached)


@pytest.mark.soak
@needs_instructions
@pytest.mark.parametrize("seed", ["first", "second"])
def test_nothing_is_touched_before_or_beyond_an_operand_or_scratch(seed: str) -> None:
    root = Path(__file__).parents[3]
    paths = os.pathsep.join([str(root), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.guarded_pairs", seed, str(FUZZ * 100)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120 + FUZZ * 100,
    )
    told = done.returncode, done.stdout.splitlines()[-1:], done.stderr[-2000:]
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), told


def three_products(layer: BlockLocal) -> list[Tensor]:
    x, y = (random_map(shape, 3, dtype=torch.bfloat16) for shape in (layer.input, layer.output))
    filters = random_weights(layer, dtype=torch.bfloat16)
    return [
        ops.local_product(x, filters, layer),
        ops.local_adjoint(y, filters, layer),
        ops.local_outer(y, x, layer),
    ]


@pytest.mark.parametrize("layer", [WIDE, DEEP, ODD])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("band_bytes", [1, 1 << 21])
def test_without_instructions_operations_go_to_kernels_of_float32_and_round_once(
    layer: BlockLocal, dtype: torch.dtype, band_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(available.VARIABLE, raising=False)
    monkeypatch.setattr(available, "_has_pairs", lambda: False)
    monkeypatch.setattr(widened, "BAND_BYTES", band_bytes)
    widened._bands.cache_clear()
    for name in OPERATIONS:
        monkeypatch.delattr(batched, name)  # several times slower
    x, y = (random_map(shape, 5).to(dtype) for shape in (layer.input, layer.output))
    filters = random_weights(layer).to(dtype)
    for function, first, second in (
        (ops.local_product, x, filters),
        (ops.local_adjoint, y, filters),
        (ops.local_outer, y, x),
    ):
        found = function(first, second, layer)
        expected = function(first.double(), second.double(), layer)
        assert found.dtype == dtype
        rounding = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(found.double(), expected, rtol=1.01 * rounding, atol=1e-4)
    widened._bands.cache_clear()


def test_a_processor_must_have_the_instructions() -> None:
    assert pairs.available(PAIRED)
    assert not pairs.available(Processor("avx512", "x86-64-v4", "", PAIRED.triple))
    assert not pairs.available(
        Processor("avx512", "znver4", "+avx512bw,+avx512vl,-avx512bf16", PAIRED.triple)
    )
    assert not pairs.available(ARM)


@dataclass(frozen=True)
class Turn:
    """The inner loop of a tile, and whether a register other than the stack's points at the stack."""

    lines: list[str]
    framed: bool

    @property
    def multiplications(self) -> int:
        return sum(one.startswith("vdpbf16ps") for one in self.lines)

    @property
    def spills(self) -> list[str]:
        stack = r"\(%r[sb]p" if self.framed else r"\(%rsp"
        return [one for one in self.lines if re.search(stack, one)]


def turns(text: str) -> dict[str, Turn]:
    """The innermost loop that multiplies pairs, of each tile in assembly."""
    found: dict[str, Turn] = {}
    tile, lines, labels = "", list[str](), dict[str, int]()
    for line in text.splitlines():
        label = re.match(r"^([.\w$]+):", line)
        if label:
            if label[1].startswith("tile_"):
                tile, lines, labels = label[1], [], {}
            labels[label[1]] = len(lines)
        elif line.startswith("\t") and not line.strip().startswith("."):
            lines.append(line.strip())
            jump = re.match(r"j\w+\s+([.\w$]+)$", lines[-1])
            if tile and tile not in found and jump and jump[1] in labels:
                body = lines[labels[jump[1]] :]
                if any(one.startswith("vdpbf16ps") for one in body):
                    found[tile] = Turn(body, "movq\t%rsp, %rbp" in lines)
    return found


def paired_tiles() -> list[Tile]:
    return sorted({one for narrow in (True, False) for one in choice.candidates(PAIRED, narrow)}, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("tile", paired_tiles(), ids=str)
@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_the_inner_loops_of_candidates_multiply_pairs_and_keep_everything_in_registers(
    kind: str, tile: Tile
) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    found = turns(engine.assembly(write_pair_kernel(KINDS[kind], tile, PAIRED.triple), PAIRED))
    shapes = [(rows, vectors) for rows in heights(tile) for vectors in range(1, tile.vectors + 1)]
    names = {f"tile_{Tile(*shape)}_masked": shape for shape in shapes}
    names |= {f"tile_{Tile(rows, tile.vectors)}": (rows, tile.vectors) for rows in heights(tile)}
    assert found.keys() == names.keys()
    for name, (rows, vectors) in names.items():
        assert found[name].multiplications == rows * vectors, (name, found[name])
    assert {name: turn.spills for name, turn in found.items() if turn.spills} == {}


def test_a_tile_too_large_for_the_registers_is_seen_to_spill() -> None:
    found = turns(engine.assembly(write_pair_kernel(KINDS["product"], Tile(12, 3), PAIRED.triple), PAIRED))
    assert found["tile_12x3"].spills
