"""Fully connected layers by the kernels of local layers, and maps flattened for them without a transposition.

Knows: which products the kernels compute, their derivatives, autograd. Does not know: modules, how a product
is computed. Results have the samples last in memory.

The choice between kernels and torch depends only on the arguments, never on a measurement. So a resumed run,
and a run on another number of threads, computes the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import map_strides
from cotswold.ops.dense.matrices import dense_layer
from cotswold.ops.memory_format import images_last_no_grad
from cotswold.ops.reverse_mode import apply, is_eager

SAMPLES_LEAST = 16
"""Samples from which they fill the vectors of most processors in float32."""
FEATURES_LEAST = 64
"""Inputs, and outputs, from which a product reads its operands often enough."""
PRODUCTS_LEAST = 1 << 23
"""Multiplications of a product that takes several times as long as the Python code around it."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x W' + bias``, as torch.nn.functional.linear does, with the samples last in memory.

    Kernels compute matrices of at least 16 samples and 8 million multiplications in float32 or float64 on a
    CPU; their bits do not depend on the number of threads. Torch computes all other products, and those that
    are compiled, exported, traced, or transformed by torch.func.

    Args:
        x: Samples ``(sample, in)``, or any shape ``(..., in)``, any strides. A matrix with the samples last
            needs no arrangement.
        weight: ``(out, in)``.
        bias: ``(out,)``; None without biases.

    Returns:
        ``(sample, out)``.

    >>> linear(torch.rand(64, 400), torch.rand(400, 400)).shape
    torch.Size([64, 400])
    """
    if not computes(x, weight, bias):
        return functional.linear(x, weight, bias)
    return apply("linear", _Linear, x, weight, bias)


def computes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if kernels compute a product of ordinary tensors on this machine."""
    operands = (x, weight) if bias is None else (x, weight, bias)
    # counters of FLOPs and others that watch torch's operations would miss a kernel
    if not isinstance(x, Tensor) or not is_eager(*operands) or torch.is_autocast_enabled("cpu"):
        return False
    if x.dim() != 2 or weight.dim() != 2:
        return False
    return (
        x.shape[0] >= SAMPLES_LEAST
        and min(weight.shape) >= FEATURES_LEAST
        and x.shape[0] * weight.numel() >= PRODUCTS_LEAST
        and x.shape[1] == weight.shape[1]
        and all(each.dtype == x.dtype and each.device == x.device for each in operands)
        and (bias is None or bias.shape == weight.shape[:1])
        and has_cpu_kernel(x)
    )


def _as_map(x: Tensor) -> Tensor:
    """Return samples as maps of one position, last in memory; a copy only if they are not."""
    return images_last_no_grad(x[:, :, None, None])


def _empty(samples: int, features: int, like: Tensor) -> Tensor:
    # not a view: torch forbids in-place changes of a view that an autograd.Function returned
    return like.new_empty_strided((samples, features), (1, samples))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _forward(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_eager(grad):  # a graph of the gradient, or several at once
            return _torch_gradients(grad, x, weight, ctx.needs_input_grad)
        return _gradients(grad, x, weight, ctx.needs_input_grad)


@fallback_to_torch
def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not has_cpu_kernel(x):
        return functional.linear(x, weight, bias)
    from cotswold.kernels import products

    samples, (outputs, inputs) = x.shape[0], weight.shape
    out = _empty(samples, outputs, x)
    layer = dense_layer(inputs, outputs)
    products.adjoint(_as_map(x), weight.contiguous()[None, None, None], layer, _as_map(out))
    return out if bias is None else out.add_(bias)


Wanted = tuple[bool, bool, bool]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@fallback_to_torch
def _gradients(grad: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> Gradients:
    """Return the wanted gradients of samples, weights and biases."""
    if not has_cpu_kernel(x):
        return _torch_gradients(grad, x, weight, wanted)
    from cotswold.kernels import products

    samples, (outputs, inputs) = x.shape[0], weight.shape
    delta, layer = _as_map(grad), dense_layer(inputs, outputs)
    of_x, of_weight, of_bias = None, None, None
    if wanted[0]:
        of_x = _empty(samples, inputs, x)
        products.product(delta, weight.contiguous()[None, None, None], layer, _as_map(of_x))
    if wanted[1]:
        of_weight = x.new_empty(outputs, inputs)
        products.outer(_as_map(x), delta, layer, of_weight[None, None, None])
    if wanted[2]:  # torch's sums would depend on the width of its vectors
        of_bias, ones = x.new_empty(outputs), x.new_ones(1, samples).t()
        sums = of_bias[None, None, None, :, None]
        products.outer(_as_map(ones), delta, dense_layer(1, outputs), sums)
    return of_x, of_weight, of_bias


def _torch_gradients(grad: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> Gradients:
    return (
        grad @ weight if wanted[0] else None,
        grad.t() @ x if wanted[1] else None,
        grad.sum(0) if wanted[2] else None,
    )


def flatten(x: Tensor) -> Tensor:
    """Return maps as samples, as ``x.flatten(1)`` does; samples stay last in memory if images are.

    Torch's copy of such a map puts the samples first, which a fully connected layer would undo.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.

    Returns:
        ``(image, channel * y * x)``.

    >>> flatten(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 192])
    """
    plain = isinstance(x, Tensor) and is_eager(x) and x.dim() == 4 and x.numel() > 0
    if not plain or x.is_contiguous() or map_strides(x) is None:
        return x.flatten(1)
    return apply("flatten", _Flatten, x)


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        images, *shape = x.shape
        out = _empty(images, x[0].numel(), x)
        out.t().view(*shape, images).copy_(x.permute(1, 2, 3, 0))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.shape = inputs[0].shape[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not is_eager(grad):
            return grad.reshape(-1, *ctx.shape)
        return images_last_no_grad(grad.view(grad.shape[0], *ctx.shape))
