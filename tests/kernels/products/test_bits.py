from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conftest import FUZZ
from tests.support.kernels import chains
from tests.support.kernels.chains import chain, multiply_add
from tests.support.kernels.operations import (
    DTYPES,
    KERNELS,
    OPERATIONS,
    Pair,
    bits,
    forced,
    operands,
    poisoned,
    processors,
    run,
    same_bits,
)
from tests.support.ops.layers import DEEP, ODD, SPARSE, WIDE, layers
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.machine.processor import Processor
from cotswold.ops import images_last

CUT = BlockLocal(MapShape(65, 2, 8), Window(2), Window(5, 2, 1, 0), rows=1, columns=2, depth=135)
"""Field rows, and neurons of a block's row, that are divided into several entries."""
FIXED = {"odd": ODD, "wide": WIDE, "deep": DEEP, "sparse": SPARSE, "cut": CUT}
TILES = [(1, 1), (2, 3), (5, 3), (6, 4), (7, 2), (8, 3), (12, 2), (24, 1)]
SOME = TILES if FUZZ > 1 else [(1, 1), (5, 3), (8, 3), (24, 1)]
"""The tiles for float64, which has the code of float32 with half the lanes; tests compile each tile."""
TINY = BlockLocal(MapShape(1, 2, 3), Window(2), Window(2, 1, 1, 0), rows=1, columns=1, depth=2)
"""A layer small enough to sum over images one number at a time."""
SETTINGS = st.tuples(st.sampled_from(processors()), st.integers(0, len(TILES) - 1), st.integers(1, 3))
"""A processor, the index of a tile, threads."""
PLACES = [(0, 1), (0, 70), (1, 2), (3, 20), (15, 33), (37, 70), (69, 70)]
"""Images of a batch of 70, ``(first, after the last)``."""


def tiles_of(dtype: torch.dtype) -> list[tuple[int, int]]:
    """Return the tiles to try with a type."""
    return TILES if dtype == torch.float32 else SOME


def plainest(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """Return the result of the simplest kernel: one number at a time, on one thread, images in lanes."""
    return run(operation, layer, pair, forced(1, 1, few=False))


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
@given(layers(), st.integers(1, 40), SETTINGS)
@settings(max_examples=30)
def test_any_tile_vector_and_number_of_threads_give_the_same_bits(
    operation: str,
    few: bool | None,
    dtype: torch.dtype,
    layer: BlockLocal,
    images: int,
    setting: tuple[Processor, int, int],
) -> None:
    processor, number, threads = setting
    tile = tiles_of(dtype)[number % len(tiles_of(dtype))]
    pair = operands(operation, layer, images, dtype)
    found = run(operation, layer, pair, forced(*tile, threads, processor, few))
    assert same_bits(found, plainest(operation, layer, pair))


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
@pytest.mark.parametrize("name", FIXED)
def test_every_tile_gives_the_same_bits(
    name: str, operation: str, few: bool | None, dtype: torch.dtype
) -> None:
    layer, images = FIXED[name], 53
    pair = operands(operation, layer, images, dtype)
    expected = plainest(operation, layer, pair)
    number = 0
    for processor in processors():
        for tile in tiles_of(dtype):
            threads, number = 1 + number % 3, number + 1
            found = run(operation, layer, pair, forced(*tile, threads, processor, few))
            assert same_bits(found, expected), (processor.isa, tile, threads)


@pytest.mark.usefixtures("any_work_is_worth_threads")
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_several_sections_give_the_same_bits_on_several_threads(operation: str, threads: int) -> None:
    pair = operands(operation, CUT, 900, torch.float32)
    found = run(operation, CUT, pair, forced(8, 3, threads, few=False))
    assert same_bits(found, plainest(operation, CUT, pair))


def one_chain(operation: str, layer: BlockLocal, pair: Pair) -> Tensor:
    """Return the result of sums without sections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains, "TERMS_MOST", 1 << 20)
        patch.setattr(chains, "IMAGES_MOST", 1 << 20)
        return chain(operation, layer, pair)


def in_a_larger_map(x: Tensor, channel: int, row: int) -> Tensor:
    """Return the same values with extra NaN between channels and between rows."""
    images, channels, height, width = x.shape
    channel += images
    row += width * channels * channel
    memory = torch.full((height * row + 5,), float("nan"), dtype=x.dtype)
    view = memory.as_strided(x.shape, (1, channel, row, channels * channel), 5)
    return view.copy_(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
@given(layers(), st.integers(1, 20), st.integers(0, 3), st.integers(0, 5))
@settings(max_examples=15)
def test_any_pitch_gives_the_same_bits_and_nothing_between_is_touched(
    operation: str,
    few: bool | None,
    dtype: torch.dtype,
    layer: BlockLocal,
    images: int,
    channel: int,
    row: int,
) -> None:
    pair = operands(operation, layer, images, dtype)
    first, second = (in_a_larger_map(x, channel, row) if x.dim() == 4 else x for x in pair)
    out = poisoned(operation, layer, first)
    if out.dim() == 4:
        out = in_a_larger_map(out, channel, row)
    run(operation, layer, (first, second), forced(5, 3, few=few), out)
    assert same_bits(out, plainest(operation, layer, pair))
    if out.dim() == 4:
        memory = out.as_strided((out.untyped_storage().size() // out.element_size(),), (1,), 0)
        assert int((~memory.isnan()).sum()) == out.numel()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), [one for one in KERNELS if one[0] != "outer"])
@pytest.mark.parametrize("name", ["odd", "wide", "cut"])
def test_images_have_the_same_bits_at_any_place_of_a_batch_of_any_size(
    name: str, operation: str, few: bool | None, dtype: torch.dtype
) -> None:
    layer = FIXED[name]
    values, filters = operands(operation, layer, 70, dtype)
    whole = run(operation, layer, (values, filters), forced(8, 3, few=False))
    for first, end in PLACES:
        part = values[first:end]
        for handed in (part, images_last(part.contiguous())):
            found = run(operation, layer, (handed, filters), forced(8, 3, few=few))
            assert same_bits(found, whole[first:end]), (first, end)
        onto = poisoned(operation, layer, values)
        run(operation, layer, (part, filters), forced(8, 3, few=few), onto[first:end])
        assert same_bits(onto[first:end], whole[first:end])
        assert onto[:first].isnan().all() and onto[end:].isnan().all()


def nasty_pair(operation: str, layer: BlockLocal, images: int, dtype: torch.dtype, special: bool) -> Pair:
    """Return operands with zeros of both signs, subnormals and the largest numbers; ``special`` adds infinity
    and NaN."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    pool = [0.0, -0.0, least, -3 * least, 5 * info.smallest_normal, info.max, -info.max, 1.0, -1.0]
    pool += [0.5, 2.0**-60, -(2.0**60), 1 + info.eps, -1 + info.eps / 2]
    if special:
        pool += [float("inf"), -float("inf"), float("nan")]
    generator = torch.Generator().manual_seed(5)

    def spoilt(x: Tensor) -> Tensor:
        chosen = torch.tensor(pool, dtype=dtype)[torch.randint(len(pool), x.shape, generator=generator)]
        kept = torch.rand(x.shape, generator=generator) < (0.8 if special else 0.3)
        return torch.where(kept, x, chosen)

    first, second = operands(operation, layer, images, dtype)
    second = spoilt(second)
    return images_last(spoilt(first)), second if second.dim() == 5 else images_last(second)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("processor", processors(), ids=lambda one: one.isa)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
def test_zeros_subnormals_infinities_and_nan_pass_as_ieee_says(
    operation: str, few: bool | None, processor: Processor, dtype: torch.dtype, special: bool
) -> None:
    pair = nasty_pair(operation, ODD, 5, dtype, special)
    found = run(operation, ODD, pair, forced(5, 3, processor=processor, few=few))
    expected = chain(operation, ODD, pair)
    assert same_bits(found, expected), (bits(found) != bits(expected)).nonzero()[:5]


SECTIONED = {
    "rows of 60, four to a section, five of six in the map above": (
        BlockLocal(MapShape(12, 9, 5), Window(6, 4, 1, 0), Window(5, 2, 2, 2), rows=1, columns=1, depth=2),
        ["product"],
    ),
    "rows of 325 or 260, in halves": (
        BlockLocal(MapShape(65, 2, 8), Window(2), Window(5, 2, 1, 0), rows=1, columns=1, depth=1),
        ["product"],
    ),
    "rows of 771 in four parts": (
        BlockLocal(MapShape(257, 1, 3), Window(1), Window(3), rows=1, columns=1, depth=2),
        ["product"],
    ),
    "blocks of two rows of 80, three rows to a section": (
        BlockLocal(MapShape(1, 4, 3), Window(2, 1), Window(2, 1, 1, 0), rows=2, columns=2, depth=40),
        ["adjoint"],
    ),
    "blocks of rows of 515, in three parts": (
        BlockLocal(MapShape(1, 3, 2), Window(2, 1), Window(1), rows=1, columns=1, depth=515),
        ["adjoint"],
    ),
}
"""Layers whose sums have several sections, with the operations concerned."""
MANY = [384, 385, 800]
"""Numbers of images with one, two and three sections."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SECTIONED)
def test_a_section_begins_at_0_and_is_added_to_those_before_it(name: str, dtype: torch.dtype) -> None:
    layer, operations = SECTIONED[name]
    for operation in operations:
        pair = operands(operation, layer, 2, dtype)
        expected = chain(operation, layer, pair)
        assert not same_bits(expected, one_chain(operation, layer, pair)), "no border is crossed"
        for processor in processors():
            for tile in ((5, 3), (8, 3)):
                for few in (False, True) if operation == "product" else (None,):
                    found = run(operation, layer, pair, forced(*tile, processor=processor, few=few))
                    assert same_bits(found, expected), (processor.isa, tile, few)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("images", MANY)
def test_a_section_of_images_begins_at_0_and_is_added_to_those_before_it(
    images: int, dtype: torch.dtype
) -> None:
    pair = operands("outer", TINY, images, dtype)
    expected = chain("outer", TINY, pair)
    assert same_bits(expected, one_chain("outer", TINY, pair)) == (images == 384)
    for processor in processors():
        for tile in ((5, 3), (8, 3)):
            found = run("outer", TINY, pair, forced(*tile, processor=processor))
            assert same_bits(found, expected), (processor.isa, tile)


@given(st.floats(width=32), st.floats(width=32), st.floats(width=32, allow_subnormal=True))
@example(1.0, -1.0, 1.0)
@example(0.0, -1.0, -0.0)
@settings(max_examples=100)
def test_the_chain_that_bits_are_compared_with_rounds_as_a_wider_sum_does(
    a: float, b: float, c: float
) -> None:
    # a product of two float32 is exact in float64; where their sum is too, rounding it is the answer
    found = torch.tensor([multiply_add(a, b, c, torch.float32)], dtype=torch.float64)
    wide = torch.tensor([a * b + c], dtype=torch.float64)
    if torch.isfinite(wide) and wide.item() - a * b == c and wide.item() - c == a * b:
        wide = wide.to(torch.float32).to(torch.float64)
        assert torch.equal(found.view(torch.int64), wide.view(torch.int64))
