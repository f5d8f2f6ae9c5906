"""Layouts promised to compilers by operations on tensors without memory, compared with real results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from tests.support.ops.layers import LAYERS, random_map, random_weights
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Smoothing
from cotswold.ops import contrast, filters, local, memory_format, pooling
from cotswold.ops import fused_activation as activated

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SMOOTHINGS = [(1, False), (2, True), (3, True), (4, True), (2, False), (3, False)]
"""Sizes of windows, and whether the map keeps its size."""


def _pitched(x: Tensor) -> Tensor:
    return ops.images_last(torch.cat([x, x]))[: x.shape[0]]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "images first": lambda x: x,
    "images last": ops.images_last,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "part of a batch": _pitched,
}


@pytest.fixture(params=["", "torch"], ids=["kernels", "torch"])
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", request.param)


EVERY = list(product((1, 20), (1, 3), (1, 7), (1, 8)))
"""Images, channels, height and width for float32: every combination of extents of 1."""
FEW = [(20, 3, 7, 8), (1, 3, 7, 8), (20, 1, 7, 8), (20, 3, 1, 8), (20, 3, 7, 1), (1, 1, 1, 1)]
"""Extents for the other types: none, one or all are 1."""


def maps(dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield small maps in every layout."""
    for images, channels, height, width in EVERY if dtype == torch.float32 else FEW:
        x = random_map(MapShape(channels, height, width), images, dtype=dtype)
        for lay in LAYOUTS.values():
            yield lay(x)


def layout(x: Tensor) -> tuple[object, ...]:
    """Return shape, type, and the meaningful strides."""
    strides = [stride for stride, extent in zip(x.stride(), x.shape, strict=True) if extent > 1]
    return x.dtype, tuple(x.shape), strides


def promised(operation: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Return the result, whose layout must equal that of the operation on fakes."""
    real = operation(*arguments)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(one) if isinstance(one, Tensor) else one for one in arguments]
        fake = operation(*fakes)
    told = [(tuple(one.shape), one.stride()) if isinstance(one, Tensor) else one for one in arguments]
    assert layout(real) == layout(fake), told
    return real


@pytest.mark.slow
@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("dtype", DTYPES)
def test_smoothed_maps_lie_as_compilers_are_told(dtype: torch.dtype) -> None:
    for x in maps(dtype):
        for last in (memory_format._last_op, memory_format._first_op):
            promised(last, x)
        for size, keep in SMOOTHINGS:
            if not keep and min(x.shape[2:]) < 2 * size - 1:
                continue
            y = promised(pooling._pool_op, x, size, keep, 1e-2)
            promised(pooling._gradient_op, y, y, x, size, keep, 0.1)
            promised(pooling._gradient_op, None, y, x, size, keep, 0.1)
            z = promised(contrast._norm_op, x, size, keep, 0.01)
            promised(contrast._gradient_op, z, x, size, keep, 0.01)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_responses_and_gradients_lie_as_compilers_are_told(layer: BlockLocal, dtype: torch.dtype) -> None:
    code, weights = local.encode(layer), random_weights(layer, dtype=dtype)
    for images, lay in product((1, 5, 20), LAYOUTS.values()):
        x = lay(random_map(layer.input, images, dtype=dtype))
        y = promised(local._product_op, x, weights, code)
        promised(local._adjoint_op, y, weights, code)
        promised(local._outer_op, y, x, code)
        for activation in ("identity", "tanh", "relu"):
            biases = torch.ones(layer.norms_shape, dtype=dtype)
            promised(activated._activated_op, x, weights, biases, code, activation)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_scaled_filters_lie_as_compilers_are_told(dtype: torch.dtype) -> None:
    for layer in LAYERS:
        weights = random_weights(layer, dtype=dtype)
        for given in (weights, weights.transpose(0, 1).contiguous().transpose(0, 1)):
            norms = promised(filters._norms_op, given)
            promised(filters._scaled_op, given, norms)


@pytest.mark.soak
def test_an_even_window_that_keeps_the_size_compiles_where_torch_pools() -> None:
    x = ops.images_last(random_map(MapShape(3, 9, 9), 4, dtype=torch.bfloat16))

    def pooled(x: Tensor) -> Tensor:
        return ops.l2_pool(x, Smoothing(4, keep=True), 1e-3) * 2 + 1

    torch._dynamo.reset()
    found = torch.compile(pooled, fullgraph=True)(x)
    torch.testing.assert_close(found, pooled(x))
