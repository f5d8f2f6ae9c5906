from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.ops.layers import LAYERS, PLAIN

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape


@pytest.mark.parametrize("layer", LAYERS)
def test_random_filters_have_norm_one_and_weights_only_where_the_map_is(layer: BlockLocal) -> None:
    filters = ops.random_filters(layer, seed=3, stack=0, dtype=torch.float64)
    torch.testing.assert_close(ops.filter_norms(filters), torch.ones(layer.norms_shape, dtype=torch.float64))
    ones = torch.ones(1, layer.input.channels, layer.input.height, layer.input.width, dtype=torch.float64)
    seen = ops.local_outer(torch.ones(1, *_shape(layer.output), dtype=torch.float64), ones, layer)
    assert torch.equal(filters != 0, seen != 0)


def _shape(shape: MapShape) -> tuple[int, int, int]:
    return shape.channels, shape.height, shape.width


def test_a_blocks_filters_do_not_depend_on_the_grid() -> None:
    larger = replace(PLAIN, input=MapShape(3, 12, 10))
    few, many = ops.random_filters(PLAIN, 7, 1), ops.random_filters(larger, 7, 1)
    assert torch.equal(few, many[: few.shape[0], : few.shape[1]])


def test_seed_stack_and_block_each_change_the_filters() -> None:
    base = ops.random_filters(PLAIN, 0, 0)
    assert not torch.equal(base, ops.random_filters(PLAIN, 1, 0))
    assert not torch.equal(base, ops.random_filters(PLAIN, 0, 1))
    assert not torch.equal(base[0, 0], base[0, 1])
    assert not torch.equal(base[0, 1], base[1, 0])


def test_every_dtype_gets_the_same_filters_rounded() -> None:
    wide = ops.random_filters(PLAIN, 0, 0, dtype=torch.float64)
    assert torch.equal(ops.random_filters(PLAIN, 0, 0), wide.float())
    assert torch.equal(ops.random_filters(PLAIN, 0, 0, dtype=torch.bfloat16), wide.to(torch.bfloat16))


def test_norms_of_bfloat16_filters_are_summed_in_float32() -> None:
    filters = torch.ones(1, 1, 40, 40, 2, dtype=torch.bfloat16)  # bfloat16 alone would stop counting at 256
    assert torch.equal(ops.filter_norms(filters), torch.full((1, 1, 2), 40.0))


def test_filters_and_rows_are_divided_by_their_norms_but_for_those_that_have_none() -> None:
    filters = 3 * ops.random_filters(PLAIN, 7, 1)
    wanted = filters / ops.filter_norms(filters)[:, :, None, None]
    filters[0, 0, :, :, 0] = wanted[0, 0, :, :, 0] = 0
    ops.scale_to_norm_1(filters)
    torch.testing.assert_close(filters, wanted)
    for shape in ((4, 6), (4, 2, 3, 1), (4, 2, 3, 1, 2)):
        rows = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        rows[1], rows[2] = 0, float("inf")
        before = rows.clone()
        ops.scale_rows_to_norm_1(rows)
        assert torch.equal(rows[1:3], before[1:3])
        for row in (0, 3):
            torch.testing.assert_close(rows[row], before[row] / before[row].norm())
    with pytest.raises(ValueError, match="must have 5 dimensions"):
        ops.scale_to_norm_1(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float32, [1e-25, 1e-40, 1e20, 1.0]),
        (torch.bfloat16, [1e-25, 1e20, 1.0]),
        (torch.float64, [1e-200, 1e200, 1.0]),
    ],
)
def test_a_norm_is_right_where_squares_are_no_numbers(dtype: torch.dtype, sizes: list[float]) -> None:
    torch.manual_seed(0)
    unit = torch.randn(1, 2, 3, 4, len(sizes), dtype=torch.float64)
    filters = (unit * torch.tensor(sizes, dtype=torch.float64)).to(dtype)
    scale = torch.tensor(sizes, dtype=torch.float64)
    expected = torch.linalg.vector_norm(filters.double() / scale, dim=(2, 3)) * scale
    torch.testing.assert_close(ops.filter_norms(filters).double(), expected, rtol=1e-5, atol=0)
    if dtype == torch.float64:
        ops.scale_to_norm_1(filters)
        torch.testing.assert_close(ops.filter_norms(filters), torch.ones_like(expected))


def test_norms_of_zeros_and_of_what_is_not_finite_stay_so() -> None:
    filters = torch.zeros(1, 1, 2, 2, 3)
    filters[..., 1], filters[0, 0, 0, 0, 2] = torch.inf, torch.nan
    found = ops.filter_norms(filters)[0, 0]
    assert found[0] == 0 and found[1] == torch.inf and found[2].isnan()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 2, 4)])
def test_scaling_no_rows_or_empty_rows_writes_nothing(shape: tuple[int, ...]) -> None:
    memory = torch.full((16,), 7.0)
    ops.scale_rows_to_norm_1(memory[:0].view(shape))
    assert bool((memory == 7).all())
