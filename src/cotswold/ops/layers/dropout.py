"""Dropout whose mask is a hash of one random key and of each element's place.

Knows: which tensors take it, how the key is drawn, the derivatives of any order. Does not know: modules.

The mask depends on the key and the shape only: not on the layout, threads, vectors, or the availability of
kernels. Backward computes it again, so that no mask stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from cotswold.kernels.available import DTYPES, fallback_to_torch, has_cpu_kernel
from cotswold.kernels.dropout_mask import Mask
from cotswold.ops.pooling import workers
from cotswold.ops.reverse_mode import apply, is_eager

MIN_ELEMENTS = 1 << 12
"""Elements below which torch's dropout is as fast."""
MAX_ELEMENTS = 1 << 32
"""Elements from which on places would repeat."""


def takes_hashed_dropout(x: Tensor) -> bool:
    """True if `hashed_dropout` computes this tensor; torch computes all others.

    Those are small, or on another device, of another dtype, or compiled, traced, transformed or watched.
    """
    return (
        is_eager(x)
        and x.device.type == "cpu"
        and x.dtype in DTYPES
        and x.layout == torch.strided
        and MIN_ELEMENTS <= x.numel() < MAX_ELEMENTS
    )


_is_hashed = ContextVar("is_hashed", default=False)


@contextmanager
def masks_are_hashed() -> Iterator[None]:
    """Let `dropout_mask` hash, for tensors of which a process holds only a part."""
    token = _is_hashed.set(True)
    try:
        yield
    finally:
        _is_hashed.reset(token)


def dropout_mask(ones: Tensor, probability: float) -> Tensor:
    """Return dropout of ones of a whole tensor's shape: hashed within `masks_are_hashed`, else torch's."""
    if _is_hashed.get() and takes_hashed_dropout(ones):
        return hashed_dropout(ones, probability)
    return torch.dropout(ones, probability, True)


def hashed_dropout(x: Tensor, probability: float) -> Tensor:
    """Return a tensor whose elements are 0 with this probability, above 0 and below 1, and scaled otherwise.

    Draws one 64-bit key from torch's default generator.
    """
    key = torch.empty((), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)  # any int64
    mask = Mask.of(int(key), probability)
    if torch.is_grad_enabled() and x.requires_grad:
        return apply("dropout", _HashedDropout, x, mask)
    return _dropped(x, mask)


@fallback_to_torch
def _dropped(x: Tensor, mask: Mask) -> Tensor:
    if not has_cpu_kernel(x):
        return mask.apply(x)
    from cotswold.kernels.maps import drop

    return drop(x, mask, workers(x))


class _HashedDropout(torch.autograd.Function):
    """Linear: its derivative is the same dropout of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Mask) -> Tensor:
        ctx.mask = mask
        return _dropped(x, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if not is_eager(grad):  # torch maps over gradients, for example
            return ctx.mask.apply(grad), None
        if torch.is_grad_enabled() and grad.requires_grad:
            return apply("dropout", _HashedDropout, grad, ctx.mask), None
        return _dropped(grad, ctx.mask), None
