"""L2 pooling and contrast normalisation, compared with their definitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ops import reference
from tests.support.ops.layers import random_map, smoothed_maps
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError, UserError
from cotswold.geometry import MapShape, Smoothing
from cotswold.ops.contrast import gaussian_means
from cotswold.ops.pooling import WIDEST, box_sum, box_sum_adjoint

PAPER = Smoothing(5)


@given(smoothed_maps(), st.integers(0, 3), st.floats(1e-6, 1.0))
def test_pooling_equals_its_reference(case: tuple[Smoothing, MapShape], images: int, epsilon: float) -> None:
    smoothing, shape = case
    x = random_map(shape, images)
    torch.testing.assert_close(ops.l2_pool(x, smoothing, epsilon), reference.l2_pool(x, smoothing, epsilon))


@pytest.mark.parametrize("size", [WIDEST, WIDEST + 1])
def test_windows_beyond_the_largest_kernel_are_pooled_too(size: int) -> None:
    smoothing = Smoothing(size, keep=True)
    x = random_map(MapShape(2, 24, 9), 3).requires_grad_()
    got, right = (pool(x, smoothing, 1e-3) for pool in (ops.l2_pool, reference.l2_pool))
    torch.testing.assert_close(got, right)
    slopes = [torch.autograd.grad(one.cos().sum(), x)[0] for one in (got, right)]
    torch.testing.assert_close(*slopes)


@given(smoothed_maps(), st.integers(0, 3), st.floats(0.01, 1.0))
def test_normalisation_equals_its_reference(
    case: tuple[Smoothing, MapShape], images: int, floor: float
) -> None:
    smoothing, shape = case
    x = random_map(shape, images)
    got, expected = ops.contrast_norm(x, smoothing, floor), reference.contrast_norm(x, smoothing, floor)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@given(smoothed_maps())
def test_spreading_is_the_adjoint_of_summing(case: tuple[Smoothing, MapShape]) -> None:
    smoothing, shape = case
    x, y = random_map(shape, 2), random_map(smoothing.output(shape), 2, seed=2)
    torch.testing.assert_close(
        (y * box_sum(x, smoothing)).sum(), (x * box_sum_adjoint(y, x, smoothing)).sum()
    )


def test_sums_over_windows_do_not_cancel() -> None:
    x = torch.ones(1, 1, 1, 40)
    x[..., 0] = 1e30  # running sums would leave nothing of the ones after it
    assert torch.equal(box_sum(x, Smoothing(1))[..., 1:], torch.ones(1, 1, 1, 39))
    wide = x.expand(1, 1, 5, 40)
    assert torch.equal(box_sum(wide, Smoothing(5))[0, 0, 0, 1:], torch.full((35,), 25.0))


@pytest.mark.parametrize("smoothing", [PAPER, Smoothing(5, keep=True), Smoothing(4, keep=True), Smoothing(1)])
def test_gaussian_means_of_a_constant_are_the_constant_up_to_the_border(smoothing: Smoothing) -> None:
    matrix = gaussian_means(11, smoothing, torch.empty(0, dtype=torch.float64))
    ones = torch.ones(11, dtype=torch.float64)
    torch.testing.assert_close(matrix @ ones, ones[: matrix.shape[0]])


def test_normalised_maps_have_local_mean_zero_and_a_root_mean_square_near_one() -> None:
    y = ops.contrast_norm(50 + 20 * random_map(MapShape(8, 40, 40), 2), PAPER)
    assert abs(float(y.mean())) < 0.02
    assert 0.9 < float(y.square().mean().sqrt()) < 1.1


@pytest.mark.parametrize("smoothing", [PAPER, Smoothing(5, keep=True)])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e3, 1e15])
def test_constant_maps_of_any_size_normalise_to_zero_with_finite_slopes(
    smoothing: Smoothing, scale: float
) -> None:
    x = torch.full((2, 3, 16, 16), scale, requires_grad=True)
    normalised = ops.contrast_norm(x, smoothing)
    pooled = ops.contrast_norm(ops.l2_pool(x, smoothing), smoothing)
    for y in (normalised, pooled):
        (gradient,) = torch.autograd.grad(y.square().sum(), x)
        assert y.isfinite().all() and gradient.isfinite().all()
    if scale < 1e4:
        assert float(normalised.detach().abs().max()) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_near_float64(dtype: torch.dtype) -> None:
    x = random_map(MapShape(4, 14, 13), 3).to(dtype)
    wide = ops.contrast_norm(ops.l2_pool(x.double(), PAPER), PAPER)
    narrow = ops.contrast_norm(ops.l2_pool(x, PAPER), PAPER)
    assert narrow.dtype == dtype
    rtol = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(narrow.double(), wide, rtol=rtol, atol=rtol)


def test_results_have_their_images_last() -> None:
    x = random_map(MapShape(4, 14, 13), 3)
    for y in (ops.l2_pool(x, PAPER), ops.contrast_norm(x, PAPER), ops.l2_pool(x, Smoothing(3, keep=True))):
        assert ops.images_last(y) is y


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    x = random_map(MapShape(1, 6, 6), 1)
    with pytest.raises(UserError, match="positive epsilon"):
        ops.l2_pool(x, PAPER, 0.0)
    with pytest.raises(UserError, match="positive floor"):
        ops.contrast_norm(x, PAPER, float("nan"))
    with pytest.raises(GeometryError, match="does not fit"):
        ops.l2_pool(x, Smoothing(7))
    with pytest.raises(GeometryError, match="does not fit"):
        ops.contrast_norm(x, PAPER)  # fits once, but not twice


NARROW = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("value", [0.0, -1.0, 1e-310, float("inf"), float("nan")])
def test_an_epsilon_or_a_floor_that_is_no_positive_number_of_the_maps_type_is_refused(
    dtype: torch.dtype, value: float
) -> None:
    x = random_map(MapShape(1, 9, 9), 1, dtype=dtype)
    with pytest.raises(UserError, match=rf"positive epsilon .* 1e-6, from .* for {dtype}, got {value}"):
        ops.l2_pool(x, PAPER, value)
    with pytest.raises(UserError, match=rf"positive floor, such as 0.01, from .* for {dtype}, got {value}"):
        ops.contrast_norm(x, PAPER, value)


@pytest.mark.parametrize("dtype", NARROW)
def test_maps_of_zeros_have_a_slope_at_the_least_epsilon_and_floor_that_are_taken(dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    epsilon = min(torch.finfo(dtype).smallest_normal, 1e-7)
    floor = max(epsilon, 4 / torch.finfo(dtype).max, torch.finfo(wide).smallest_normal ** 0.5)
    x = torch.zeros(2, 1, 9, 9, dtype=dtype, requires_grad=True)
    for out in (ops.l2_pool(x, PAPER, epsilon), ops.contrast_norm(x, PAPER, floor)):
        assert bool(out.isfinite().all())
        (slope,) = torch.autograd.grad(out, x, torch.ones_like(out))
        assert bool(slope.isfinite().all())
    for value, act in ((epsilon / 4, ops.l2_pool), (floor / 4, ops.contrast_norm)):
        with pytest.raises(UserError, match="positive"):
            act(x, PAPER, value)


def test_maps_of_integers_are_refused_in_a_sentence() -> None:
    x = torch.ones(1, 1, 9, 9, dtype=torch.int64)
    for act in (ops.l2_pool, ops.contrast_norm):
        with pytest.raises(UserError, match=r"need floating-point maps, got torch.int64"):
            act(x, PAPER)


def test_squares_and_slopes_of_narrow_types_are_summed_in_float32() -> None:
    x = torch.full((1, 1, 9, 9), 300.0, dtype=torch.float16, requires_grad=True)
    pooled = ops.l2_pool(x, PAPER)  # 300² alone is more than float16 has
    assert torch.equal(pooled, torch.full_like(pooled, 1500.0))
    still = torch.zeros(1, 1, 18, 18, dtype=torch.float16, requires_grad=True)
    (slope,) = torch.autograd.grad(ops.l2_pool(still, Smoothing(9)).sum(), still)  # 81 slopes of 1000
    assert torch.equal(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [255.0, 20_000.0])
def test_maps_in_half_precision_may_have_any_finite_values(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    x = (torch.rand(2, 3, 8, 8) * 2 - 1).mul(scale).to(dtype)
    functions: list[Callable[[Tensor], Tensor]] = [
        lambda maps: ops.contrast_norm(maps, Smoothing(3, keep=True)),
        lambda maps: ops.l2_pool(maps, Smoothing(2)),
    ]
    for function in functions:
        half, whole = x.clone().requires_grad_(), x.float().requires_grad_()
        y, expected = function(half), function(whole)
        torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
        direction = torch.randn_like(y)
        (found,) = torch.autograd.grad(y, half, direction)
        (slope,) = torch.autograd.grad(expected, whole, direction.float())
        bound = 0.02 * float(slope.abs().max())
        torch.testing.assert_close(found.float(), slope, rtol=0.02, atol=bound)
