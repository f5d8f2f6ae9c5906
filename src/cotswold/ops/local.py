"""Differentiable block-local products: Wx, W'x, δx' (Coates et al. 2013, section 4.1).

Knows: that the three are each other's derivatives, `torch.library`, autograd and vmap. Does not know: how a
product is computed, modules. Each product takes any strides and returns maps with the images last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.ops import flops, products
from cotswold.ops.memory_format import empty_map, images_last, ordered_as
from cotswold.ops.reverse_mode import apply, compute, differentiate, is_eager, refuse_forward_mode

Code = tuple[int, ...]


def encode(layer: BlockLocal) -> Code:
    """Encode the layer as integers; a custom operation cannot carry objects."""
    shape, y, x = layer.input, layer.y, layer.x
    return (
        *(shape.channels, shape.height, shape.width),
        *(y.size, y.stride, y.pad_before, y.pad_after),
        *(x.size, x.stride, x.pad_before, x.pad_after),
        *(layer.rows, layer.columns, layer.depth),
    )


@lru_cache(maxsize=1024)
def decode(code: Code) -> BlockLocal:
    """Decode a layer from its integers."""
    return BlockLocal(MapShape(*code[:3]), Window(*code[3:7]), Window(*code[7:11]), *code[11:])


def _product(x: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    return products.product(x, filters, decode(tuple(code)))


@torch.library.custom_op("cotswold::local_product", mutates_args=())
def _product_op(x: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    refuse_forward_mode("local_product", x, filters)
    return _product(x, filters, code)


@_product_op.register_fake
def _(x: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    return empty_map(x, x.shape[0], decode(tuple(code)).output)


def _adjoint(y: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    return products.adjoint(y, filters, decode(tuple(code)))


@torch.library.custom_op("cotswold::local_adjoint", mutates_args=())
def _adjoint_op(y: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    refuse_forward_mode("local_adjoint", y, filters)
    return _adjoint(y, filters, code)


@_adjoint_op.register_fake
def _(y: Tensor, filters: Tensor, code: Sequence[int]) -> Tensor:
    return empty_map(y, y.shape[0], decode(tuple(code)).input)


def _outer(delta: Tensor, x: Tensor, code: Sequence[int]) -> Tensor:
    return products.outer(delta, x, decode(tuple(code)))


@torch.library.custom_op("cotswold::local_outer", mutates_args=())
def _outer_op(delta: Tensor, x: Tensor, code: Sequence[int]) -> Tensor:
    refuse_forward_mode("local_outer", delta, x)
    return _outer(delta, x, code)


@_outer_op.register_fake
def _(delta: Tensor, x: Tensor, code: Sequence[int]) -> Tensor:
    return x.new_empty(decode(tuple(code)).filters_shape)


def arranged_gradient(grad: Tensor, *operands: Tensor) -> Tensor:
    """Return a gradient of responses with images last: arranged once for all products of a backward pass."""
    return images_last(grad) if is_eager(grad, *operands) and products.reads_images_last(grad) else grad


def arranged_input(x: Tensor, filters: Tensor) -> Tensor:
    """Return the input with images last, if backward needs this copy, too, and it is no larger than filters.

    Autograd then keeps the copy instead of ``x``. A larger input is copied in parts, in forward and in
    backward.
    """
    if not (torch.is_grad_enabled() and filters.requires_grad and is_eager(x, filters)):
        return x
    return images_last(x) if x.nbytes <= filters.nbytes and products.reads_images_last(x) else x


def input_gradient(grad: Tensor, filters: Tensor, code: Code, x: Tensor) -> Tensor:
    """Return the gradient of an input, in the memory order of the input."""
    return ordered_as(adjoint_of(grad, filters, code), x)


def _apply_per_slice(
    name: str,
    function: type[torch.autograd.Function],
    size: int,
    dims: Sequence[int | None],
    first: Tensor,
    second: Tensor,
    code: Code,
) -> Tensor:
    """Apply a vmapped operation slice by slice; stack the results along dimension 0."""
    slices = [
        apply(
            name,
            function,
            first if dims[0] is None else first.select(dims[0], i),
            second if dims[1] is None else second.select(dims[1], i),
            code,
        )
        for i in range(size)
    ]
    return torch.stack(slices)


def _fold(
    name: str, function: type[torch.autograd.Function], maps: Tensor, dim: int, filters: Tensor, code: Code
) -> Tensor:
    """Apply a vmapped operation with shared filters: the mapped dimension joins the images."""
    maps = maps.movedim(dim, 0)
    out = apply(name, function, maps.flatten(0, 1), filters, code)
    return out.reshape(*maps.shape[:2], *out.shape[1:])


class _SavesOperands(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Code], output: Tensor) -> None:
        first, second, ctx.code = inputs
        ctx.save_for_backward(first, second)


class _Product(_SavesOperands):
    @staticmethod
    def forward(x: Tensor, filters: Tensor, code: Code) -> Tensor:
        return compute(_product_op, _product, x, filters, code)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, filters = ctx.saved_tensors
        to_x, to_filters, _ = ctx.needs_input_grad
        grad = arranged_gradient(grad, x, filters)
        return (
            input_gradient(grad, filters.conj(), ctx.code, x) if to_x else None,
            outer_of(grad, x.conj(), ctx.code) if to_filters else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, filters: Tensor, code: Code
    ) -> tuple[Tensor, int]:
        if in_dims[1] is None and in_dims[0] is not None:
            return _fold("local_product", _Product, x, in_dims[0], filters, code), 0
        return _apply_per_slice("local_product", _Product, info.batch_size, in_dims, x, filters, code), 0


class _Adjoint(_SavesOperands):
    @staticmethod
    def forward(y: Tensor, filters: Tensor, code: Code) -> Tensor:
        return compute(_adjoint_op, _adjoint, y, filters, code)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        y, filters = ctx.saved_tensors
        to_y, to_filters, _ = ctx.needs_input_grad
        return (
            apply("local_product", _Product, grad, filters.conj(), ctx.code) if to_y else None,
            outer_of(y.conj(), grad, ctx.code) if to_filters else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], y: Tensor, filters: Tensor, code: Code
    ) -> tuple[Tensor, int]:
        if in_dims[1] is None and in_dims[0] is not None:
            return _fold("local_adjoint", _Adjoint, y, in_dims[0], filters, code), 0
        return _apply_per_slice("local_adjoint", _Adjoint, info.batch_size, in_dims, y, filters, code), 0


class _Outer(_SavesOperands):
    @staticmethod
    def forward(delta: Tensor, x: Tensor, code: Code) -> Tensor:
        return compute(_outer_op, _outer, delta, x, code)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        delta, x = ctx.saved_tensors
        to_delta, to_x, _ = ctx.needs_input_grad
        return (
            apply("local_product", _Product, x.conj(), grad, ctx.code) if to_delta else None,
            adjoint_of(delta.conj(), grad, ctx.code) if to_x else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], delta: Tensor, x: Tensor, code: Code
    ) -> tuple[Tensor, int]:
        return _apply_per_slice("local_outer", _Outer, info.batch_size, in_dims, delta, x, code), 0


differentiate(_product_op, _Product)
differentiate(_adjoint_op, _Adjoint)
differentiate(_outer_op, _Outer)
for _name in ("local_product", "local_adjoint", "local_outer"):
    flops.count(_name, 2, decode)


def check_map(name: str, x: Tensor, shape: MapShape) -> None:
    """Raise GeometryError unless ``x`` holds maps of ``shape``."""
    if x.dim() != 4 or tuple(x.shape[1:]) != (shape.channels, shape.height, shape.width):
        raise GeometryError(
            f"{name} needs maps of shape (image, {shape.channels}, {shape.height}, {shape.width}), "
            f"got {tuple(x.shape)}"
        )


def check_filters(name: str, filters: Tensor, layer: BlockLocal) -> None:
    """Raise GeometryError unless ``filters`` have the layer's shape."""
    if tuple(filters.shape) != layer.filters_shape:
        raise GeometryError(
            f"{name} needs filters of shape {layer.filters_shape}, got {tuple(filters.shape)}"
        )


def check_same_dtype_and_device(name: str, first: Tensor, second: Tensor) -> None:
    """Raise UserError unless both operands have the same dtype and device."""
    if first.dtype != second.dtype or first.device != second.device:
        raise UserError(
            f"{name} needs operands of one dtype on one device, got {first.dtype} on {first.device} "
            f"and {second.dtype} on {second.device}; convert one with .to()"
        )


def adjoint_of(y: Tensor, filters: Tensor, code: Code) -> Tensor:
    """``local_adjoint`` without checks."""
    return apply("local_adjoint", _Adjoint, y, filters, code)


def outer_of(delta: Tensor, x: Tensor, code: Code) -> Tensor:
    """``local_outer`` without checks."""
    return apply("local_outer", _Outer, delta, x, code)


def local_product(x: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``Wx``, the responses of untied filters to maps.

    Differentiable any number of times in reverse mode.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.
        filters: ``(block_y, block_x, field_y, field_x * channel, neuron)``.
        layer: Geometry of the layer.

    Returns:
        Responses ``(image, depth, y, x)``, with images last in memory.

    Raises:
        GeometryError: Shapes do not fit the layer.
        UserError: Dtypes or devices differ.
        ForwardModeError: Forward-mode differentiation.

    Source:
        Coates et al. 2013, section 4.1.
    """
    check_map("local_product", x, layer.input)
    check_filters("local_product", filters, layer)
    check_same_dtype_and_device("local_product", x, filters)
    flops.announce()
    return apply("local_product", _Product, arranged_input(x, filters), filters, encode(layer))


def local_adjoint(y: Tensor, filters: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``W'y``, the adjoint of `local_product`: overlapping fields are summed.

    Args:
        y: Responses ``(image, depth, y, x)``, any strides.
        filters: ``(block_y, block_x, field_y, field_x * channel, neuron)``.
        layer: Geometry of the layer.

    Returns:
        Maps ``(image, channel, y, x)``, with images last in memory.

    Raises:
        GeometryError: Shapes do not fit the layer.
        UserError: Dtypes or devices differ.
        ForwardModeError: Forward-mode differentiation.
    """
    check_map("local_adjoint", y, layer.output)
    check_filters("local_adjoint", filters, layer)
    check_same_dtype_and_device("local_adjoint", y, filters)
    flops.announce()
    return apply("local_adjoint", _Adjoint, y, filters, encode(layer))


def local_outer(delta: Tensor, x: Tensor, layer: BlockLocal) -> Tensor:
    """Return ``δx'`` summed over images: the gradient of ``<delta, Wx>`` with respect to the filters.

    Args:
        delta: Gradient of the responses, ``(image, depth, y, x)``, any strides.
        x: Maps ``(image, channel, y, x)``, any strides.
        layer: Geometry of the layer.

    Returns:
        ``(block_y, block_x, field_y, field_x * channel, neuron)``; 0 for weights that read only padding.

    Raises:
        GeometryError: Shapes do not fit the layer.
        UserError: Dtypes or devices differ.
        ForwardModeError: Forward-mode differentiation.
    """
    check_map("local_outer", delta, layer.output)
    check_map("local_outer", x, layer.input)
    check_same_dtype_and_device("local_outer", delta, x)
    if delta.shape[0] != x.shape[0]:
        raise GeometryError(
            f"delta and x of local_outer need equal image counts, got {delta.shape[0]} and {x.shape[0]}"
        )
    flops.announce()
    return apply("local_outer", _Outer, delta, x, encode(layer))
