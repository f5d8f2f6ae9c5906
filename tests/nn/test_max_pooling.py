"""Max pooling, compared with torch's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.support.kernels.processors import narrower
from torch import Tensor, fx, nn
from torch.nn import functional as F

from cotswold import ops
from cotswold.api.export.portable import portable
from cotswold.errors import GeometryError
from cotswold.geometry import MapShape
from cotswold.kernels.machine import processor
from cotswold.kernels.operands import map_strides
from cotswold.nn import MaxPool2d
from cotswold.ops.layers import max_pooling

WINDOWS: list[Any] = [
    (1, 1, 0),
    (2, 2, 0),
    (3, 2, 1),
    ((3, 2), (1, 2), (1, 0)),
    (2, 3, 1),
    ((1, 4), 1, (0, 2)),
    (5, 1, 2),
]
"""Size, stride and padding: overlapping windows, gaps between windows, windows of padding only."""
SHAPES = [(1, 1, 5, 5), (3, 2, 7, 6), (20, 3, 8, 9), (70, 4, 9, 11), (100, 7, 5, 6)]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "images first": lambda x: x.contiguous(),
    "images last": ops.images_last,
    "part of a batch": lambda x: ops.images_last(torch.cat([x, x]))[: x.shape[0]],
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
}


def _maps(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Few different values, so that maxima are tied; NaN and infinities."""
    x = torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    flat = x.view(-1)
    flat[::37], flat[1::41], flat[2::43] = float("nan"), float("inf"), -float("inf")
    return x


def _same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def _pool(x: Tensor, windows: Any, activation: Any) -> Tensor:
    size, stride, padding = windows
    return ops.max_pool2d(x, size, stride, padding, activation)


def _theirs(x: Tensor, windows: Any) -> Tensor:
    found: Tensor = nn.MaxPool2d(*windows)(x)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_values_and_gradients_are_those_of_torch(dtype: torch.dtype, windows: Any, activation: Any) -> None:
    layer, theirs = MaxPool2d(*windows, activation=activation), nn.MaxPool2d(*windows)
    for shape in SHAPES:
        x = _maps(shape, dtype)
        for lay in LAYOUTS.values():
            ours, right = lay(x).detach().requires_grad_(), x.clone().requires_grad_()
            for pool in (layer, partial(_pool, windows=windows, activation=activation)):
                got, expected = pool(ours), theirs(right)
                expected = torch.relu(expected) if activation == "relu" else expected
                _same(got, expected)
                with torch.no_grad():
                    _same(pool(ours), expected)
                grad = torch.randn_like(expected)
                _same(*(torch.autograd.grad(*one, grad)[0] for one in ((got, ours), (expected, right))))


def test_narrower_vectors_give_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrower()
    if narrow is not None:
        monkeypatch.setattr(processor, "this_processor", lambda: narrow)
    for windows in WINDOWS:
        for dtype in (torch.float32, torch.float64):
            x, right = [_maps((37, 3, 8, 9), dtype).requires_grad_() for _ in range(2)]
            got, expected = _pool(x, windows, "identity"), _theirs(right, windows)
            _same(got, expected)
            grad = torch.randn_like(expected)
            _same(*(torch.autograd.grad(*one, grad)[0] for one in ((got, x), (expected, right))))


def test_bits_do_not_depend_on_threads() -> None:
    x = ops.images_last(torch.randn(40, 5, 31, 29)).requires_grad_()
    found = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y = ops.max_pool2d(x, 3, 1, 1)
            found.append((y, *torch.autograd.grad(y.square().sum(), x)))
        finally:
            torch.set_num_threads(before)
    for one in found[1:]:
        for got, expected in zip(one, found[0], strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("backend", ["", "torch"])
@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_second_derivatives_are_those_of_torch(
    backend: str, activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", backend)
    x = torch.randn(6, 2, 7, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: ops.max_pool2d(x, 3, 2, 1, activation), x)


def test_gradients_map_over_a_dimension() -> None:
    x, right = [_maps((20, 3, 8, 9), torch.float32).requires_grad_() for _ in range(2)]
    got, expected = ops.max_pool2d(x, 3, 2, 1, "relu"), torch.relu(F.max_pool2d(right, 3, 2, 1))
    grads = torch.randn(4, *got.shape)
    (slopes,) = torch.autograd.grad(got, x, grads, is_grads_batched=True, retain_graph=True)
    for slope, grad in zip(slopes, grads, strict=True):
        _same(slope, torch.autograd.grad(expected, right, grad, retain_graph=True)[0])
    _same(torch.func.vmap(lambda g: torch.autograd.grad(got, x, g)[0])(grads), slopes)


def test_without_a_kernel_torch_computes_the_same_bytes_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = max_pooling._windows((3, 2), (2, 2), (1, 1))
    x, grad = ops.images_last(_maps((20, 3, 8, 9), torch.float32)), torch.randn(20, 3, 4, 5)
    found = []
    for backend in ("", "torch"):
        monkeypatch.setenv("COTSWOLD_KERNELS", backend)
        out, places = max_pooling._pool(x, windows, relu=True, keep_places=True)
        assert places is not None
        found.append((out, places, max_pooling._gradient(grad, places, windows, MapShape(3, 8, 9))))
    for got, expected in zip(*found, strict=True):
        _same(got, expected)


def test_backward_keeps_one_byte_an_output() -> None:
    x = ops.images_last(torch.randn(20, 3, 8, 8)).requires_grad_()
    kept: list[Tensor] = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        out = MaxPool2d(2, activation="relu")(x)
    assert [(one.dtype, one.shape) for one in kept] == [(torch.uint8, out.shape)]


@pytest.mark.parametrize(
    "pool", [MaxPool2d(2), partial(ops.max_pool2d, kernel_size=2)], ids=["module", "ops"]
)
def test_a_forward_pass_computes_its_windows_once(
    pool: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, computed = max_pooling._windows, []

    def noted(*arguments: tuple[int, int]) -> max_pooling.Windows:
        computed.append(arguments)
        return usual(*arguments)

    monkeypatch.setattr(max_pooling, "_windows", noted)
    pool(_maps((20, 3, 8, 8), torch.float32))
    assert computed == [((2, 2), (2, 2), (0, 0))]


def test_results_have_the_order_of_the_input() -> None:
    x = torch.randn(20, 3, 8, 8)
    assert MaxPool2d(2)(x).is_contiguous()
    assert map_strides(MaxPool2d(2)(ops.images_last(x))) is not None


@pytest.mark.parametrize(
    "pool",
    [
        MaxPool2d(2, ceil_mode=True),
        MaxPool2d(2, dilation=2),
        MaxPool2d((16, 16), 1),
        MaxPool2d(2, activation="relu"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_computes_what_the_kernel_does_not(pool: MaxPool2d, dtype: torch.dtype) -> None:
    x = torch.randn(8, 2, 17, 19).to(dtype)
    theirs = nn.MaxPool2d(pool.kernel_size, pool.stride, 0, pool.dilation, ceil_mode=pool.ceil_mode)(x)
    _same(pool(x), torch.relu(theirs) if pool.activation == "relu" else theirs)


def test_indices_a_single_map_and_an_empty_batch_are_torchs() -> None:
    x = torch.randn(8, 2, 6, 6)
    found, at = MaxPool2d(2, return_indices=True, activation="relu")(x)
    expected, places = F.max_pool2d(x, 2, return_indices=True)
    _same(found, expected.relu())
    _same(at, places)
    _same(MaxPool2d(2)(x[0]), F.max_pool2d(x[0], 2))
    assert MaxPool2d(2)(x[:0]).shape == ops.max_pool2d(x[:0], 2).shape == (0, 2, 3, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_traced_exported_and_mapped_pooling_is_the_same() -> None:
    x = torch.randn(8, 2, 6, 6)
    layer = MaxPool2d(2, activation="relu")
    expected = layer(x)
    _same(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), expected)
    compiled = torch.compile(lambda x: ops.max_pool2d(x, 2), backend="aot_eager", fullgraph=True)
    _same(compiled(x), F.max_pool2d(x, 2))
    _same(torch.export.export(layer, (x,)).module()(x), expected)
    _same(fx.symbolic_trace(nn.Sequential(layer))(x), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(torch.jit.trace(layer, x[:4])(x), expected)  # type: ignore[no-untyped-call]  # untyped
    batches = torch.stack([x, x + 1])
    _same(torch.func.vmap(layer)(batches), torch.stack([layer(x), layer(x + 1)]))
    slopes = torch.func.vmap(torch.func.grad(lambda x: layer(x).square().sum()))(batches)
    right = torch.stack(
        [torch.func.grad(lambda x: F.max_pool2d(x, 2).relu().square().sum())(b) for b in batches]
    )
    _same(slopes, right)
    _same(torch.func.jvp(lambda x: ops.max_pool2d(x, 2), (x,), (x,))[1], F.max_pool2d(x, 2))


def test_copies_and_exports_keep_the_activation() -> None:
    x = torch.randn(8, 2, 6, 6)
    layer = nn.Sequential(MaxPool2d(3, 2, 1, activation="relu"))
    assert "activation='relu'" in repr(copy.deepcopy(layer))
    own = portable(layer, (x,))
    assert not any(isinstance(one, MaxPool2d) for one in own.modules())
    _same(own(x), layer(x))


def test_what_cannot_be_is_refused() -> None:
    x = torch.randn(8, 2, 6, 6)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kernel_size": 7}, "window of 7 does not fit 6 positions along y"),
        ({"kernel_size": 2, "padding": 2}, "at most half of the window of 2, got 2"),
        ({"kernel_size": 2, "activation": "tanh"}, "identity and relu, got 'tanh'"),
        ({"kernel_size": 2, "stride": 0}, "at least 1, got 2 and 0"),
    ]
    for wrong, message in cases:
        with pytest.raises(GeometryError, match=message):
            ops.max_pool2d(x, **wrong)
    with pytest.raises(GeometryError, match="got 3 dimensions"):
        ops.max_pool2d(x[0], 2)
    with pytest.raises(GeometryError, match="activation must be"):
        MaxPool2d(2, activation="tanh")  # type: ignore[arg-type]  # wrong on purpose
    for layer in (MaxPool2d(7), MaxPool2d(2, padding=2), MaxPool2d(2, stride=0)):
        with pytest.raises(RuntimeError, match=r"pad|size|stride should"):  # torch's own errors
            layer(x)
