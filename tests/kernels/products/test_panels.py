from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES, bits, forced, operands, processors, run

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.kinds import PRODUCT
from cotswold.kernels.operands import MapStrides
from cotswold.kernels.products import autotune, problem
from cotswold.kernels.products import run as kernels

TILES = [(1, 1), (5, 3), (8, 3), (12, 2), (6, 4), (24, 1)]


def dense(inputs: int, outputs: int) -> BlockLocal:
    return BlockLocal(MapShape(inputs, 1, 1), Window(1), Window(1), 1, 1, outputs)


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.integers(1, 600),
    st.integers(1, 90),
    st.integers(1, 70),
    st.sampled_from(TILES),
    st.sampled_from(processors()),
)
@settings(max_examples=40)
def test_copies_of_a_give_the_same_bits(
    dtype: torch.dtype, inputs: int, outputs: int, images: int, tile: tuple[int, int], processor: Processor
) -> None:
    layer = dense(inputs, outputs)
    pair, how = operands("product", layer, images, dtype), forced(*tile, 1, processor, few=False)
    expected = run("product", layer, pair, how)
    kernels.READY.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(problem, "PAGE_BYTES", 0)
        patch.setattr(problem, "LANES_LEAST", 0)
        found = run("product", layer, pair, how)
    kernels.READY.clear()
    assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("padded", [False, True])
def test_fields_of_one_row_that_reach_into_padding_are_copied_too(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(5, 2, 2, 2) if padded else Window(5, 2)
    layer = BlockLocal(MapShape(70, 3, 9), Window(1), window, rows=1, columns=1, depth=21)
    pair, how = operands("product", layer, 40, torch.float32), forced(8, 3, few=False)
    expected = run("product", layer, pair, how)
    kernels.READY.clear()
    monkeypatch.setattr(problem, "PAGE_BYTES", 0)
    monkeypatch.setattr(problem, "LANES_LEAST", 0)
    assert torch.equal(bits(run("product", layer, pair, how)), bits(expected))


def test_wide_layers_are_copied_and_narrow_ones_read_in_place() -> None:
    def copied(outputs: int, images: int) -> bool:
        pitches = MapStrides(images, images, images)
        return problem.Problem(PRODUCT, dense(8, outputs), images, "float32", pitches, pitches).panels

    assert copied(1024, 320) and not copied(1023, 320) and not copied(1024, 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("images", [3, 400])
def test_an_outer_product_can_be_added_to_what_is_there(dtype: torch.dtype, images: int) -> None:
    layer = dense(30, 50)
    delta, x = operands("outer", layer, images, dtype)
    alone = run("outer", layer, (delta, x), forced(8, 3))
    before = torch.randn(layer.filters_shape, dtype=dtype)
    added = before.clone()
    kernels.outer(delta, x, layer, added, forced(8, 3), accumulates=True)
    torch.testing.assert_close(added, before + alone)
    if images <= 384:  # one section, which is one chain
        assert torch.equal(added, before + alone)


def test_measuring_tiles_adds_nothing_to_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_CHOICES", {})
    monkeypatch.setattr(autotune, "WORTH_FLOPS", 0)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.load", lambda _: None)
    monkeypatch.setattr("cotswold.kernels.compile.code_cache.save", lambda *_: None)
    layer = dense(64, 96)
    delta, x = operands("outer", layer, 32, torch.float32)
    added = torch.zeros(layer.filters_shape)
    kernels.outer(delta, x, layer, added, accumulates=True)
    assert autotune._CHOICES, "nothing was measured"
    assert torch.equal(added, run("outer", layer, (delta, x), forced(8, 3)))
