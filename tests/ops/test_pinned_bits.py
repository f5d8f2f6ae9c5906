"""The bits of our own kernels stay equal from version to version, so that resumed runs continue identically.

The inputs are made of small integers, so that they are the same everywhere. A sum of products is a fixed
chain of fused multiply-adds (docs/kernels.md), so its bits depend on neither the processor, the tiles nor the
threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Smoothing, Window
from cotswold.kernels import available

pytestmark = pytest.mark.skipif(available.compile_error() is not None, reason="no kernels here")

GEOMETRY = BlockLocal(MapShape(3, 23, 19), Window(7, 2, 3, 2), Window(5, 3, 1, 2), 2, 3, 5)
IMAGES = 37


def values(shape: tuple[int, ...], step: int) -> Tensor:
    """Return thirds of small integers: inexact in binary, so that every rounding shows."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    return (((count * step) % 1009 - 504).to(torch.float32) / 3).reshape(shape)


def images(shape: MapShape, step: int) -> Tensor:
    return ops.images_last(values((IMAGES, shape.channels, shape.height, shape.width), step))


def batch() -> Tensor:
    return images(GEOMETRY.input, 7919)


def filters() -> Tensor:
    return values(GEOMETRY.filters_shape, 104729)


def responses() -> Tensor:
    return images(GEOMETRY.output, 611953)


def weight_gradient() -> Tensor:
    weights = filters().requires_grad_()
    ops.local_product(batch(), weights, GEOMETRY).backward(responses())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert weights.grad is not None
    return weights.grad


PINNED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "Wx": (lambda: ops.local_product(batch(), filters(), GEOMETRY), "dae37b85924689de"),
    "W'x": (lambda: ops.local_adjoint(responses(), filters(), GEOMETRY), "2afd807e23513407"),
    "the gradient of the filters": (weight_gradient, "d5458fee1f6cff84"),
    "L2 pooling": (lambda: ops.l2_pool(responses(), Smoothing(3), 1e-6), "6736a3434a14d564"),
}


@pytest.mark.parametrize("name", PINNED)
def test_the_bits_of_a_kernel_are_those_of_earlier_versions(name: str) -> None:
    compute, expected = PINNED[name]
    found = compute().detach().contiguous().numpy().tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == expected
