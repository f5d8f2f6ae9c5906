"""Convolutions by the kernels of local layers: all blocks share one block's filters.

Knows: which convolutions the kernels compute, their derivatives, autograd. Does not know: modules, how a
product is computed. Maps come out with the images last in memory.

The choice between kernels and torch depends only on the arguments, never on a measurement. So a resumed run,
and a run on another number of threads, computes the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.ops.memory_format import empty_map, images_last, images_last_no_grad
from cotswold.ops.reverse_mode import is_eager, is_traced

IMAGES_LEAST = 16
"""Images from which they fill the vectors of most processors in float32."""
POSITIONS_MOST = 4096
"""Output positions up to which the tables of a product are small compared with its operands."""

Pair = tuple[int, int]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return a convolution of maps, as torch.nn.functional.conv2d does, with the images last in memory.

    Kernels compute batches of at least 16 images in float32 or float64 on a CPU; their bits do not depend on
    the number of threads. Torch computes all other convolutions, and those that are compiled, exported,
    traced, or transformed by torch.func.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides. Maps with the images last need no arrangement.
        weight: Filters ``(neuron, channel, field_y, field_x)``.
        bias: ``(neuron,)``; None without biases.
        stride: Distance of neighbouring fields along y and x.
        padding: Zeros on either side along y and x, fewer than the field's extent.

    Returns:
        ``(image, neuron, y, x)``.

    Raises:
        GeometryError: ``stride`` or ``padding`` has another number of values than one or two.

    >>> conv2d(torch.rand(32, 3, 8, 8), torch.rand(10, 3, 5, 5), padding=2).shape
    torch.Size([32, 10, 8, 8])
    """
    steps, zeros = _pair("stride", stride), _pair("padding", padding)
    if not computes(x, weight, bias, steps, zeros):
        return functional.conv2d(x, weight, bias, steps, zeros)
    x = images_last(x) if x.requires_grad else images_last_no_grad(x)
    out: Tensor = _Convolution.apply(x, weight, bias, steps, zeros)  # type: ignore[no-untyped-call]  # untyped
    return out


def _pair(name: str, value: int | Sequence[int]) -> Pair:
    values = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(values) not in (1, 2):
        raise GeometryError(f"{name} must be one or two integers, got {value!r}")
    return values[0], values[-1]


def computes(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> bool:
    """True if kernels compute a convolution of ordinary tensors on this machine."""
    if torch.compiler.is_compiling() or is_traced():
        return False
    if not all(map(_is_ordinary, (x, weight) if bias is None else (x, weight, bias))):
        return False
    return (
        x.dim() == 4
        and weight.dim() == 4
        and x.shape[1] == weight.shape[1]
        and x.shape[0] >= IMAGES_LEAST
        and x.dtype == weight.dtype
        and (bias is None or (bias.dtype == x.dtype and bias.shape == weight.shape[:1]))
        and has_cpu_kernel(x)
        and not torch.is_autocast_enabled("cpu")
        # counters of FLOPs and others that watch torch's operations would miss a kernel
        and torch._C._len_torch_dispatch_stack() == 0
        and getattr(forward_ad, "_current_level", 0) < 0
        and _fits(tuple(x.shape[1:]), tuple(weight.shape), stride, padding)
    )


def _is_ordinary(x: Tensor) -> bool:
    """True for tensors and parameters on the CPU, False for proxies, subclasses and what torch.func wraps."""
    known = type(x) is Tensor or type(x) is torch.nn.Parameter
    return known and x.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(x)


@lru_cache(maxsize=1024)
def _fits(shape: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair) -> bool:
    """True if a convolution is a layer of the kernels, and worth its tables."""
    try:
        down, across = _layer(shape, weight, stride, padding).grid
    except GeometryError:
        return False
    return down * across <= POSITIONS_MOST


@lru_cache(maxsize=1024)
def _layer(shape: tuple[int, ...], weight: tuple[int, ...], stride: Pair, padding: Pair) -> BlockLocal:
    y, x = (
        Window(size, step, zeros, zeros)
        for size, step, zeros in zip(weight[2:], stride, padding, strict=True)
    )
    return BlockLocal(MapShape(*shape), y, x, 1, 1, weight[0])


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
    ) -> Tensor:
        ctx.stride, ctx.padding, ctx.has_bias = stride, padding, bias is not None
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_eager(grad):  # a graph of the gradient, or several at once
            found = _torch_gradients(grad, x, weight, ctx.stride, ctx.padding, wanted)
        else:
            found = _gradients(grad, x, weight, ctx.stride, ctx.padding, wanted)
        return *found, None, None


@fallback_to_torch
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    if not has_cpu_kernel(x):
        return functional.conv2d(x, weight, bias, stride, padding)
    from cotswold.kernels import products

    layer, filters = _layer(tuple(x.shape[1:]), tuple(weight.shape), stride, padding), _arranged(weight)
    out = empty_map(x, x.shape[0], layer.output)
    if bias is not None and products.supports_epilogue(x.shape[0], x.dtype, layer, "identity"):
        products.product_with_activation(x, filters, bias.contiguous(), layer, out, "identity", tied=True)
        return out
    products.product(x, filters, layer, out, tied=True)
    return out if bias is None else out.add_(bias[:, None, None])


def _arranged(weight: Tensor) -> Tensor:
    """Return filters in the kernels' order, ``(1, 1, field_y, field_x * channel, neuron)``."""
    neurons, channels, height, width = weight.shape
    return weight.detach().permute(2, 3, 1, 0).reshape(1, 1, height, width * channels, neurons).contiguous()


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@fallback_to_torch
def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, wanted: Sequence[bool]
) -> Gradients:
    """Return the wanted gradients of input, filters and biases."""
    if not has_cpu_kernel(x):
        return _torch_gradients(grad, x, weight, stride, padding, wanted)
    from cotswold.kernels import convolutions, products

    layer = _layer(tuple(x.shape[1:]), tuple(weight.shape), stride, padding)
    grad = images_last_no_grad(grad)
    of_x, of_weight, of_bias = None, None, None
    if wanted[0]:
        of_x = empty_map(x, x.shape[0], layer.input)
        products.adjoint(grad, _arranged(weight), layer, of_x, tied=True)
    if wanted[1] or wanted[2]:
        of_weight, of_bias = convolutions.filter_gradient(grad, x, layer)
    return of_x, of_weight if wanted[1] else None, of_bias if wanted[2] else None


def _torch_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, wanted: Sequence[bool]
) -> Gradients:
    found: Gradients = torch.ops.aten.convolution_backward(
        grad, x, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), 1, list(wanted)
    )
    return found
