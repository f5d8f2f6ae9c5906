"""Pooling and contrast normalisation on kernels: right, and the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import FUZZ
from tests.support.kernels.processors import narrower
from tests.support.ops.layers import random_map
from torch import Tensor

from cotswold import ops
from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels import available
from cotswold.kernels.compile import jobs
from cotswold.kernels.machine import execution, processor
from cotswold.kernels.machine.execution import PreparedKernel
from cotswold.kernels.maps import normalisation
from cotswold.kernels.maps import pooling as pool_kernels
from cotswold.kernels.maps.pooling import pool
from cotswold.ops import contrast, pooling
from cotswold.ops.memory_format import empty_map
from cotswold.ops.pooling import pool_backward, workers

pytestmark = pytest.mark.skipif(available.compile_error() is not None, reason="no kernels here")

WINDOWS = [Smoothing(size) for size in (5, 2, 1)] + [Smoothing(size, keep=True) for size in (5, 4, 9)]
TYPED = [
    (dtype, smoothed)
    for dtype, windows in ((torch.float32, WINDOWS), (torch.float64, WINDOWS if FUZZ > 1 else WINDOWS[::3]))
    for smoothed in windows
]
"""Types and windows: float64 has the code of float32 with half the lanes, and each window is compiled."""
CASES = [(1, (1, 9, 9)), (3, (5, 13, 10)), (50, (3, 12, 9)), (96, (2, 10, 17))]
SHAPES = [(images, MapShape(*shape)) for images, shape in CASES]
DTYPES = [torch.float32, torch.float64]
Call = Callable[[Tensor, Tensor], Tensor]


def calls(smoothed: Smoothing) -> dict[str, Call]:
    """Return every operation of a map, and of a map with the shape of its own pooled or normalised map."""
    return {
        "pool": lambda x, _: ops.l2_pool(x, smoothed, 0.01),
        "pool gradient": lambda x, y: pool_backward(x, ops.l2_pool(x, smoothed, 0.01), smoothed, y, 0.3),
        "pool penalty": lambda x, y: pool_backward(x, ops.l2_pool(x, smoothed, 0.01), smoothed, None, 0.3),
        "norm": lambda x, _: ops.contrast_norm(x, smoothed, 0.1),
        "norm gradient": lambda x, y: contrast.contrast_norm_backward(y, x, smoothed, 0.1),
    }


OPERATIONS = tuple(calls(Smoothing(1)))


def operands(
    name: str, images: int, shape: MapShape, smoothed: Smoothing, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return a map, images last, and a gradient with the shape of its result."""
    above = smoothed.output(shape)
    if name.startswith("norm"):
        above = smoothed.output(above)
    x, y = random_map(shape, images, 0, dtype), random_map(above, images, 1, dtype)
    return ops.images_last(x), ops.images_last(y)


def by_torch(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Return the result without kernels."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pooling, contrast):
            patch.setattr(module, "has_cpu_kernel", lambda _: False)
        return call(x, y)


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small maps into tasks too, of few rows and few lanes."""
    for module in (pool_kernels, normalisation):
        monkeypatch.setattr(module, "LEAST_ROWS", 1)
    monkeypatch.setattr(execution, "SERIAL_BELOW", 0)
    monkeypatch.setattr(normalisation, "CACHED_BYTES", 1)
    monkeypatch.setattr(pool_kernels, "BLOCK_BYTES", 64)
    monkeypatch.setattr(pool_kernels, "PART_COLUMNS", 3)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def fits(name: str, smoothed: Smoothing, shape: MapShape) -> bool:
    steps = 2 if name.startswith("norm") else 1
    return smoothed.keep or steps * (smoothed.size - 1) < min(shape.height, shape.width)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("dtype", "smoothed"), TYPED)
@pytest.mark.parametrize("case", SHAPES)
def test_kernels_are_as_near_to_the_right_result_as_torch_is(
    name: str, smoothed: Smoothing, dtype: torch.dtype, case: tuple[int, MapShape]
) -> None:
    images, shape = case
    assert fits(name, smoothed, shape)
    x, y = operands(name, images, shape, smoothed, dtype)
    call = calls(smoothed)[name]
    got, plain = call(x, y), by_torch(call, x, y)
    assert got.dtype == dtype and got.shape == plain.shape and ops.images_last(got) is got
    if dtype == torch.float64:
        torch.testing.assert_close(got, plain, rtol=1e-11, atol=1e-11)
        return
    right = by_torch(call, x.double(), y.double())
    scale = float(right.abs().max())
    errors = [float((one.double() - right).abs().max()) for one in (got, plain)]
    assert errors[0] <= 2 * errors[1] + 2e-7 * scale
    assert float((got.double() - right).square().mean().sqrt()) <= 2e-6 * scale


@pytest.mark.slow
@pytest.mark.usefixtures("many_tasks", "two_threads")
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("dtype", "smoothed"), TYPED)
def test_bits_are_the_same_for_threads_tasks_vector_widths_and_places_in_the_batch(
    name: str, smoothed: Smoothing, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = operands(name, 37, MapShape(3, 21, 18), smoothed, dtype)
    call = calls(smoothed)[name]
    got = call(x, y)
    assert torch.equal(got[5:29], call(x[5:29], y[5:29]))  # keeps its parent's pitch: channel by channel
    assert torch.equal(got[7:8], call(x[7:8].clone(), y[7:8].clone()))
    monkeypatch.undo()
    torch.set_num_threads(1)
    assert torch.equal(got, call(x, y))
    narrow = narrower()
    if narrow is not None:
        monkeypatch.setattr(processor, "this_processor", lambda: narrow)
        assert torch.equal(got, call(x, y))


@pytest.mark.parametrize("name", ["pool", "pool gradient"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 4, 5, 7])
def test_outputs_that_go_past_the_caches_have_the_same_bits(
    name: str, dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoothed = Smoothing(size)
    x, y = operands(name, 16, MapShape(3, 19, 31), smoothed, dtype)
    call = calls(smoothed)[name]
    plain = call(x, y)
    monkeypatch.setattr(pool_kernels, "STREAMED_BYTES", 0)
    jobs.READY.clear()
    assert torch.equal(call(x, y), plain)


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(OPERATIONS),
)
def test_any_map_and_window_agree_with_torch(
    images: int, channels: int, height: int, width: int, size: int, keep: bool, name: str
) -> None:
    smoothed, shape = Smoothing(size, keep), MapShape(channels, height, width)
    if not fits(name, smoothed, shape):
        return
    x, y = operands(name, images, shape, smoothed, torch.float64)
    call = calls(smoothed)[name]
    torch.testing.assert_close(call(x, y), by_torch(call, x, y), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("many_tasks")
@pytest.mark.parametrize("smoothed", WINDOWS)
def test_every_output_is_written_and_nothing_beside_it(smoothed: Smoothing) -> None:
    shape = MapShape(2, 11, 10)
    x = ops.images_last(random_map(shape, 20, dtype=torch.float32))
    above = smoothed.output(shape)
    wide = MapShape(2, above.height + 2, above.width)
    around = empty_map(x, 25, wide).fill_(float("nan"))
    inside = around[3:23, :, 1:-1]
    pool(x, inside, smoothed, 0.01, workers(x))
    assert torch.equal(inside, ops.l2_pool(x, smoothed, 0.01))
    assert int(around.isnan().sum()) == around.numel() - inside.numel()


@pytest.mark.parametrize("name", OPERATIONS)
def test_nan_reaches_just_the_outputs_whose_windows_see_it_and_infinity_no_others(name: str) -> None:
    smoothed = Smoothing(3, keep=True)
    x, y = operands(name, 3, MapShape(2, 12, 13), smoothed, torch.float64)
    call = calls(smoothed)[name]

    def with_one(value: float) -> Tensor:
        changed = x.clone()
        changed[1, 1, 6, 6] = value
        return call(changed, y)

    seen = with_one(0.25) != with_one(3.0)
    assert torch.equal(with_one(float("nan")).isnan(), seen)
    infinite = ~with_one(float("inf")).isfinite()
    assert infinite.any() and not (infinite & ~seen).any()


def test_kernels_answer_where_they_are_usable_and_torch_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = operands("pool", 4, MapShape(2, 9, 9), Smoothing(5), torch.float32)

    def unreachable(*_: object) -> None:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(PreparedKernel, "run", unreachable)
    with pytest.raises(AssertionError, match="a kernel"):
        ops.l2_pool(x, Smoothing(5))
    monkeypatch.setenv("COTSWOLD_KERNELS", "torch")
    ops.l2_pool(x, Smoothing(5))


@pytest.mark.parametrize("smoothed", [Smoothing(3), Smoothing(2, keep=True)])
def test_the_pools_gradient_with_a_weight_has_derivatives_of_its_own(smoothed: Smoothing) -> None:
    shape = MapShape(2, 5, 6)
    x, y = (one.requires_grad_() for one in operands("pool", 2, shape, smoothed, torch.float64))

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pooled = ops.l2_pool(x, smoothed, 0.1)
        return pool_backward(x, pooled, smoothed, y, 0.3), pool_backward(x, pooled, smoothed, None, 0.3)

    assert torch.autograd.gradcheck(both, (x, y))
    assert torch.autograd.gradgradcheck(both, (x, y), fast_mode=True)


def test_the_pools_gradient_is_that_of_the_weighted_sum() -> None:
    x, y = operands("pool", 3, MapShape(2, 9, 8), Smoothing(5), torch.float64)
    leaf = x.clone().requires_grad_()
    pooled = ops.l2_pool(leaf, Smoothing(5))
    (expected,) = torch.autograd.grad((pooled * y).sum() + 0.7 * pooled.sum(), leaf)
    torch.testing.assert_close(pool_backward(x, pooled.detach(), Smoothing(5), y, 0.7), expected)


@pytest.mark.parametrize("name", ["l2_pool", "contrast_norm", "l2_pool_gradient", "contrast_norm_gradient"])
def test_the_custom_operations_keep_torchs_rules(name: str) -> None:
    shape, smoothed = MapShape(2, 7, 6), Smoothing(3, keep=True)
    x, y = operands("pool", 3, shape, smoothed, torch.float64)
    arguments: tuple[object, ...] = {
        "l2_pool": (x,),
        "contrast_norm": (x,),
        "l2_pool_gradient": (y, ops.l2_pool(x, smoothed), x),
        "contrast_norm_gradient": (y, x),
    }[name]
    operation = getattr(torch.ops.cotswold, name).default
    torch.library.opcheck(operation, (*arguments, 3, True, 0.1))


def test_gradients_map_over_a_dimension() -> None:
    x = torch.stack([random_map(MapShape(2, 7, 6), 2, seed) for seed in range(3)])

    def loss(x: Tensor) -> Tensor:
        return ops.l2_pool(x, Smoothing(2), 0.1).square().sum()

    mapped = torch.func.vmap(torch.func.grad(loss))(x)
    leaves = [one.clone().requires_grad_() for one in x]
    one_by_one = [torch.autograd.grad(loss(one), one)[0] for one in leaves]
    torch.testing.assert_close(mapped, torch.stack(one_by_one))
    leaf = x[0].clone().requires_grad_()
    basis = torch.randn(4, *x[0].shape, dtype=x.dtype)
    out = ops.contrast_norm(leaf, Smoothing(3, keep=True))
    together = torch.autograd.grad(out, leaf, basis, retain_graph=True, is_grads_batched=True)[0]
    apart = [torch.autograd.grad(out, leaf, one, retain_graph=True)[0] for one in basis]
    torch.testing.assert_close(together, torch.stack(apart))
