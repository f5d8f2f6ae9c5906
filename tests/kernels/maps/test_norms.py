"""Norms of filters on kernels: right, the same to the bit, derivatives."""

from __future__ import annotations

import pytest
import torch
from tests.support.kernels.processors import narrower
from torch import Tensor

from cotswold import ops
from cotswold.kernels import available
from cotswold.kernels.machine import execution, processor
from cotswold.kernels.maps import norms
from cotswold.ops import filters as plain

pytestmark = pytest.mark.skipif(available.compile_error() is not None, reason="no kernels here")

SHAPES = [(1, 1, 1, 1, 1), (2, 3, 5, 7, 10), (1, 1, 20, 60, 129), (3, 1, 11, 3, 33), (1, 2, 4, 8, 300)]


def random_filters(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_are_as_near_to_the_right_ones_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    filters = random_filters(shape, dtype)
    got, other = ops.filter_norms(filters), plain._plain_norms(filters)
    assert got.shape == (shape[0], shape[1], shape[4]) and got.dtype == dtype
    if dtype == torch.float64:
        torch.testing.assert_close(got, other, rtol=1e-13, atol=0)
        return
    right = plain._plain_norms(filters.double())
    errors = [float(((one.double() - right) / right).abs().max()) for one in (got, other)]
    assert errors[0] <= 2 * errors[1] + 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_are_the_same_for_threads_tasks_and_vector_widths(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = random_filters((1, 3, 9, 20, 333), dtype)
    expected = ops.filter_norms(filters)
    assert torch.equal(expected[:, :, 17:40], ops.filter_norms(filters[..., 17:40]))
    before = torch.get_num_threads()
    monkeypatch.setattr(execution, "SERIAL_BELOW", 0)
    torch.set_num_threads(2)
    try:
        assert torch.equal(expected, ops.filter_norms(filters))
    finally:
        torch.set_num_threads(before)
    narrow = narrower()
    if narrow is not None:
        monkeypatch.setattr(processor, "this_processor", lambda: narrow)
        assert torch.equal(expected, ops.filter_norms(filters))


def test_derivatives_of_norms_agree_with_differences() -> None:
    filters = random_filters((1, 2, 2, 3, 3), torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(ops.filter_norms, (filters,))
    assert torch.autograd.gradgradcheck(ops.filter_norms, (filters,))


def test_a_filter_of_zeros_has_a_slope_of_zero() -> None:
    filters = torch.zeros(1, 1, 2, 2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(ops.filter_norms(filters).sum(), filters)
    assert torch.equal(slope, torch.zeros_like(filters))


def test_norms_map_over_a_dimension_and_keep_torchs_rules() -> None:
    filters = random_filters((4, 2, 1, 3, 2, 5), torch.float64)
    one_by_one = torch.stack([ops.filter_norms(one) for one in filters])
    assert torch.equal(torch.func.vmap(ops.filter_norms)(filters), one_by_one)
    torch.library.opcheck(torch.ops.cotswold.filter_norms.default, (filters[0],))


def test_nan_and_infinity_reach_their_own_norm_only() -> None:
    filters = random_filters((1, 1, 3, 3, 20), torch.float32)
    filters[0, 0, 1, 1, 4], filters[0, 0, 2, 2, 7] = float("nan"), float("inf")
    got = ops.filter_norms(filters)[0, 0]
    assert got[4].isnan() and got[7].isinf() and int(got.isfinite().sum()) == 18


@pytest.mark.parametrize("shape", [*SHAPES, (1, 2, 9, 20, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("streamed", [0, 1 << 40])
def test_the_gradient_on_kernels_has_the_bits_of_torchs(
    shape: tuple[int, ...], dtype: torch.dtype, streamed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norms, "STREAM_BYTES", streamed)
    filters = random_filters(shape, dtype).requires_grad_()
    found = ops.filter_norms(filters)
    (got,) = torch.autograd.grad(found, filters, found.detach() + 1, retain_graph=True)
    (expected,) = torch.autograd.grad(found, filters, found.detach() + 1, create_graph=True)
    assert torch.equal(got, expected)


def test_gradients_of_norms_map_over_a_dimension_and_keep_torchs_rules() -> None:
    filters = random_filters((2, 1, 3, 2, 5), torch.float64).requires_grad_()
    found = ops.filter_norms(filters)
    above = torch.randn(4, *found.shape, dtype=found.dtype)
    (together,) = torch.autograd.grad(found, filters, above, retain_graph=True, is_grads_batched=True)
    apart = [torch.autograd.grad(found, filters, one, retain_graph=True)[0] for one in above]
    assert torch.equal(together, torch.stack(apart))
    torch.library.opcheck(torch.ops.cotswold.scaled_filters.default, (filters.detach(), above[0]))
