"""A layer's products with biases and an activation, fused into one pass where a kernel supports it.

Knows: activations whose slope follows from their result. Does not know: how products are computed, modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import map_strides
from cotswold.ops import flops, products
from cotswold.ops.local import (
    Code,
    arranged_gradient,
    arranged_input,
    check_filters,
    check_map,
    check_same_dtype_and_device,
    decode,
    encode,
    input_gradient,
    local_product,
    outer_of,
)
from cotswold.ops.memory_format import empty_map, neurons_to_map
from cotswold.ops.reverse_mode import apply, compute, differentiate, refuse_forward_mode

Activation = Literal["identity", "tanh", "sigmoid", "relu"]
"""Activation applied to the sums; ``identity`` leaves them unchanged."""
_TORCH_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda y: y,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}
_SLOPES: dict[str, Callable[..., Tensor]] = {
    "identity": lambda grad: grad,
    "tanh": torch.ops.aten.tanh_backward,
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "relu": lambda grad, y: torch.ops.aten.threshold_backward(grad, y, 0),
}


def bias_gradient(delta: Tensor, code: Code) -> Tensor:
    """Adjoint of laying out biases, summed over images; takes integers, which compilers can trace."""
    *_, rows, columns, depth = code
    down, across = delta.shape[2] // rows, delta.shape[3] // columns
    apart = delta.sum(0).reshape(depth, down, rows, across, columns)
    return apart.permute(1, 3, 2, 4, 0).reshape(down, across, rows * columns * depth)


def _apply_with_local(x: Tensor, filters: Tensor, biases: Tensor, code: Code, activation: str) -> Tensor:
    layer = decode(code)
    return _TORCH_ACTIVATIONS[activation](local_product(x, filters, layer) + neurons_to_map(biases, layer))


@fallback_to_torch
def _activated(x: Tensor, filters: Tensor, biases: Tensor, code: Sequence[int], activation: str) -> Tensor:
    layer = decode(tuple(code))
    if not has_cpu_kernel(x) or not products.supports_epilogue(x, layer, activation):
        y = products.product(x, filters, layer).add_(neurons_to_map(biases, layer))
        return _TORCH_ACTIVATIONS[activation](y)
    from cotswold.kernels import products as kernels

    filters, biases = filters.contiguous(), biases.contiguous()
    out = empty_map(x, x.shape[0], products.output_of(layer))
    x = products.arranged_if_small(x)
    if map_strides(x) is not None:
        kernels.product_with_activation(x, filters, biases, layer, out, activation)
        return out

    def of_band(band: BlockLocal, seen: Tensor, blocks: slice) -> None:
        rows = slice(blocks.start * layer.rows, blocks.stop * layer.rows)
        kernels.product_with_activation(
            seen, filters[blocks], biases[blocks], band, out[:, :, rows], activation
        )

    products.for_each_band(x, layer, of_band)
    return out


@torch.library.custom_op("cotswold::local_activated", mutates_args=())
def _activated_op(x: Tensor, filters: Tensor, biases: Tensor, code: Sequence[int], activation: str) -> Tensor:
    refuse_forward_mode("local_layer", x, filters, biases)
    return _activated(x, filters, biases, code, activation)


@_activated_op.register_fake
def _(x: Tensor, filters: Tensor, biases: Tensor, code: Sequence[int], activation: str) -> Tensor:
    return empty_map(x, x.shape[0], decode(tuple(code)).output)


class _Activated(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, filters: Tensor, biases: Tensor, code: Code, activation: str) -> Tensor:
        return compute(_activated_op, _activated, x, filters, biases, code, activation)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Code, str], output: Tensor) -> None:
        x, filters, _, ctx.code, ctx.activation = inputs
        # without an activation the output is not saved, so the caller may change it in place
        ctx.save_for_backward(x, filters, *([] if ctx.activation == "identity" else [output]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, filters, *saved = ctx.saved_tensors
        to_x, to_filters, to_biases, *_ = ctx.needs_input_grad
        delta = _SLOPES[ctx.activation](arranged_gradient(grad, x, filters), *saved)
        return (
            input_gradient(delta, filters.conj(), ctx.code, x) if to_x else None,
            outer_of(delta, x.conj(), ctx.code) if to_filters else None,
            bias_gradient(delta, ctx.code) if to_biases else None,
            None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        filters: Tensor,
        biases: Tensor,
        code: Code,
        activation: str,
    ) -> tuple[Tensor, int]:
        def one(x: Tensor, filters: Tensor, biases: Tensor) -> Tensor:
            return _apply_with_local(x, filters, biases, code, activation)

        return torch.func.vmap(one, in_dims[:3])(x, filters, biases), 0


differentiate(_activated_op, _Activated)
flops.count("local_activated", 3, decode)


def local_layer(
    x: Tensor, filters: Tensor, biases: Tensor, layer: BlockLocal, activation: Activation = "identity"
) -> Tensor:
    """Return ``activation(Wx + biases)``, the responses of a whole layer, in one pass if possible.

    In float32, tanh and sigmoid are polynomials accurate to a few units in the last place. The result is
    differentiable any number of times in reverse mode.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.
        filters: ``(block_y, block_x, field_y, field_x * channel, neuron)``.
        biases: ``(block_y, block_x, neuron)``.
        layer: Geometry of the layer.
        activation: ``identity``, ``tanh``, ``sigmoid`` or ``relu``.

    Returns:
        ``(image, depth, y, x)``, with images last in memory.

    Raises:
        GeometryError: Shapes do not fit the layer.
        UserError: Dtypes or devices differ, or the activation is unknown.
        ForwardModeError: Forward-mode differentiation.
    """
    if activation not in _TORCH_ACTIVATIONS:
        raise UserError(
            f"local_layer's activation must be one of {', '.join(_TORCH_ACTIVATIONS)}, got {activation!r}"
        )
    check_map("local_layer", x, layer.input)
    check_filters("local_layer", filters, layer)
    if tuple(biases.shape) != layer.norms_shape:
        raise GeometryError(
            f"local_layer needs biases of shape {layer.norms_shape}, got {tuple(biases.shape)}"
        )
    check_same_dtype_and_device("local_layer", x, filters)
    check_same_dtype_and_device("local_layer", x, biases)
    flops.announce()
    seen = arranged_input(x, filters)
    return apply("local_layer", _Activated, seen, filters, biases, encode(layer), activation)


def fused_linear(x: Tensor, weights: Tensor, biases: Tensor, activation: Activation = "identity") -> Tensor:
    """Return ``activation(x W + biases)``, a fully connected layer by the kernels of local layers.

    Images are last in the memory of the result, so that consecutive layers need no transposition.

    Args:
        x: Inputs ``(image, in)``.
        weights: ``(in, out)``.
        biases: ``(out,)``.
        activation: ``identity``, ``tanh``, ``sigmoid`` or ``relu``.

    Returns:
        ``(image, out)``.

    Raises:
        GeometryError: Shapes do not fit.
        UserError: Dtypes or devices differ, or the activation is unknown.
        ForwardModeError: Forward-mode differentiation.
    """
    if x.dim() != 2 or weights.dim() != 2 or x.shape[1] != weights.shape[0] or 0 in weights.shape:
        raise GeometryError(
            "fused_linear needs inputs (image, in) and weights (in, out), "
            f"got {tuple(x.shape)} and {tuple(weights.shape)}"
        )
    inputs, outputs = weights.shape
    layer = BlockLocal(MapShape(inputs, 1, 1), Window(1), Window(1), 1, 1, outputs)
    y = local_layer(
        x[:, :, None, None], weights[None, None, None], biases.reshape(1, 1, -1), layer, activation
    )
    return y.flatten(1)  # a view, and so is its gradient
