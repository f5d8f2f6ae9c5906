"""Memory order of a map: images last, as products need it, or first, as other code has it.

Knows: the memory order ``[y][x][channel][image]`` of a logical ``(image, channel, y, x)`` tensor, the order
of neurons in a block, the copies that have kernels, that values and gradients do not depend on the order.
Does not know: what is computed from a map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import map_strides
from cotswold.ops.reverse_mode import apply, compute, is_eager, refuse_forward_mode


def empty_map(like: Tensor, images: int, shape: MapShape, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised map ``(image, channel, y, x)``, images last, on the device of ``like``."""
    channel = max(images, 1)
    column, row = shape.channels * channel, shape.width * shape.channels * channel
    # not a view: torch forbids in-place changes of a view that an autograd.Function returned
    size, strides = (images, shape.channels, shape.height, shape.width), (1, channel, row, column)
    return like.new_empty_strided(size, strides, dtype=dtype)


def neurons_to_map(values: Tensor, layer: BlockLocal) -> Tensor:
    """Arrange one value per neuron ``(block_y, block_x, neuron)`` as a map ``(depth, y, x)``, depth last."""
    down, across = values.shape[:2]
    spread = values.reshape(down, across, layer.rows, layer.columns, layer.depth).transpose(1, 2)
    return spread.reshape(down * layer.rows, across * layer.columns, layer.depth).permute(2, 0, 1)


MIN_IMAGES = 4
"""Images from which transposing squares of images and positions beats torch's copy."""


def images_last(x: Tensor) -> Tensor:
    """Return the same values with the images last in memory; return ``x`` itself if they already are.

    A slice of a batch or of an image keeps its parent's strides and is not copied.

    Args:
        x: Maps ``(image, channel, y, x)``; any strides, including 0.

    Raises:
        GeometryError: Another number of dimensions.
    """
    _check(x)
    return x if map_strides(x) is not None else apply("images_last", _Ordered, x, "images_last")


def images_first(x: Tensor) -> Tensor:
    """Return the same values, contiguous in torch's order; return ``x`` itself if they already are.

    Same result as ``x.contiguous()``, and several times as fast if the images are last. Use it on the output
    of local layers.

    Args:
        x: Maps ``(image, channel, y, x)``, any strides.

    Raises:
        GeometryError: Another number of dimensions.
    """
    _check(x)
    return x if x.is_contiguous() else apply("images_first", _Ordered, x, "images_first")


def ordered_as(x: Tensor, other: Tensor) -> Tensor:
    """Return the same values in the memory order of a map of the same shape: images first or channels last.

    Torch would convert a gradient later, several times as slowly. In any other order, ``x`` is returned.
    """
    return _in_order(x, _order_of(other)) if is_eager(x, other) else x


def _order_of(x: Tensor) -> str:
    """Return the operation that gives a map with images last the memory order of ``x``; empty for none."""
    if map_strides(x) is not None:
        return ""
    if x.is_contiguous():
        return "images_first"
    return "channels_last" if x.is_contiguous(memory_format=torch.channels_last) else ""


def _in_order(x: Tensor, order: str) -> Tensor:
    return apply(order, _Ordered, x, order) if order and map_strides(x) is not None else x


def _check(x: Tensor) -> None:
    if x.dim() != 4:
        raise GeometryError(f"a map must have shape (image, channel, y, x), got {tuple(x.shape)}")


@fallback_to_torch
def images_last_no_grad(x: Tensor) -> Tensor:
    """`images_last` for use inside an operation: not differentiable."""
    if map_strides(x) is not None:
        return x
    out = _empty_as(x)
    if not _is_transposable(x):
        return out.copy_(x)
    if x[0, 0].is_contiguous():
        _transpose(x, out, to_last=True)
    elif x.is_contiguous(memory_format=torch.channels_last):  # a matrix of images and all their values
        _transpose(_as_columns(x), _as_columns(out), to_last=True)
    else:
        out.copy_(x)
    return out


def _as_columns(x: Tensor) -> Tensor:
    """Return a map whose memory is ordered ``[y][x][channel]`` as one of channels alone."""
    return x.permute(0, 2, 3, 1).flatten(1)[:, :, None, None]


def _empty_as(x: Tensor) -> Tensor:
    """Return an uninitialised map of the same shape, images last."""
    return torch.empty_like(x) if 0 in x.shape[1:] else empty_map(x, x.shape[0], MapShape(*x.shape[1:]))


def _is_transposable(x: Tensor) -> bool:
    return x.shape[0] >= MIN_IMAGES and x.numel() > 0 and has_cpu_kernel(x)


def _transpose(first: Tensor, last: Tensor, to_last: bool) -> None:
    from cotswold.kernels.machine.processor import this_processor
    from cotswold.kernels.maps import layout

    here = this_processor()
    assert here is not None, "usable tensors have a processor"
    layout.copy(first, last, to_last, here, torch.get_num_threads())


def _new_images_last(x: Tensor) -> Tensor:
    out = images_last_no_grad(x)
    return out.clone() if out is x else out


@torch.library.custom_op("cotswold::images_last", mutates_args=())
def _last_op(x: Tensor) -> Tensor:
    refuse_forward_mode("images_last", x)
    return _new_images_last(x)


@_last_op.register_fake
def _(x: Tensor) -> Tensor:
    return _empty_as(x)


@torch.library.custom_op("cotswold::images_first", mutates_args=())
def _first_op(x: Tensor) -> Tensor:
    refuse_forward_mode("images_first", x)
    return _images_first(x)


@fallback_to_torch
def _images_first(x: Tensor) -> Tensor:
    if not _is_transposable(x) or map_strides(x) is None:
        return x.clone(memory_format=torch.contiguous_format)
    out = x.new_empty(x.shape)
    _transpose(out, x, to_last=False)
    return out


@fallback_to_torch
def _channels_last(x: Tensor) -> Tensor:
    known = map_strides(x)
    if not _is_transposable(x) or known is None or known.row != x.shape[3] * known.column:
        return x.clone(memory_format=torch.channels_last)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    _transpose(_as_columns(out), _as_columns(x), to_last=False)
    return out


@_first_op.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


class _Ordered(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, name: str) -> Tensor:
        return compute(*_OPS[name], x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
        """Save only the order of the input: values of the gradient do not depend on it."""
        ctx.order = _order_of(inputs[0]) if is_eager(inputs[0]) else ""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _in_order(grad, ctx.order) if ctx.order and is_eager(grad) else grad, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, name: str) -> tuple[Tensor, int]:
        return torch.stack([apply(name, _Ordered, one, name) for one in x.unbind(in_dims[0])]), 0


_OPS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "images_last": (_last_op, _new_images_last),
    "images_first": (_first_op, _images_first),
    "channels_last": (_channels_last, _channels_last),
}

for _op in (_last_op, _first_op):
    _op.register_autograd(lambda ctx, grad: grad)
