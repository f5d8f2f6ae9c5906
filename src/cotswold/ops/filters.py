"""Filters: their first values and their norms.

Knows: the layout ``(block_y, block_x, field_y, field_x * channel, neuron)``. Does not know: products, steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Box
from cotswold.kernels.available import or_torch, usable
from cotswold.kernels.operands import name_of, pointer_of
from cotswold.ops.batched import accumulator
from cotswold.ops.reverse_mode import apply, differentiate, refuse_forward_mode
from cotswold.ops.updates import Update, apply_pushes

_LOCAL_DIMS = 5

if TYPE_CHECKING:
    from cotswold.kernels.machine.processor import Processor
    from cotswold.kernels.maps.norms import Matrices


def scale_to_norm_1(filters: Tensor) -> None:
    """Divide every filter by its norm, in place; one of zeros, or that is not finite, stays as it is.

    Filters ``(block_y, block_x, field_y, field_x * channel, neuron)``. Raises ValueError for others.
    """
    if filters.ndim != _LOCAL_DIMS:
        raise ValueError(
            f"filters {tuple(filters.shape)} are not those of a local layer; rows have a function"
        )
    norms = filter_norms(filters)
    norms[(norms == 0) | ~norms.isfinite()] = 1
    filters.div_(norms[:, :, None, None])


def scale_rows_to_norm_1(rows: Tensor) -> None:
    """Divide every row by its norm, in place; one of zeros, or whose norm is not finite, stays as it is.

    Weights of fully connected layers and convolutions, ``(row, ...)``, contiguous, with the bits that a
    server's update gives (`ops.updates`).

    >>> rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> scale_rows_to_norm_1(rows)
    >>> rows
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    flat = rows.view(-1)
    if flat.numel() == 0:
        return
    apply_pushes(Update("add", columns=flat.numel() // max(1, len(rows)), unit_norm=True), flat, None, [])


def _plain_norms(filters: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(filters, dim=(2, 3), dtype=accumulator(filters.dtype))
    return norms


def _in_range(filters: Tensor, norms: Tensor) -> Tensor:
    """Correct norms, a new tensor, in place: by scaled filters where a sum of squares is out of its type's
    range."""
    limits = torch.finfo(norms.dtype)
    lost = ~((norms > (limits.tiny / limits.eps) ** 0.5) & norms.isfinite())
    if not lost.any():
        return norms
    chosen = filters.movedim(4, 2)[lost].to(norms.dtype)  # filters of zeros are among them: not all is copied
    largest = chosen.abs().amax((1, 2), keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    norms[lost] = (torch.linalg.vector_norm(chosen / scale, dim=(1, 2), keepdim=True) * scale).flatten()
    return norms


@torch.library.custom_op("cotswold::filter_norms", mutates_args=())
def _norms_op(filters: Tensor) -> Tensor:
    refuse_forward_mode("filter_norms", filters)
    return _norms(filters)


@or_torch
def _norms(filters: Tensor) -> Tensor:
    if filters.numel() == 0 or not usable(filters):
        return _in_range(filters, _plain_norms(filters)) if filters.numel() else _plain_norms(filters)
    from cotswold.kernels.maps.norms import norms

    filters = filters.contiguous()
    out = filters.new_empty((*filters.shape[:2], filters.shape[4]))
    norms(pointer_of(filters), pointer_of(out), *_workers(filters))
    return _in_range(filters, out)


def _workers(filters: Tensor) -> tuple[Matrices, Processor, int]:
    """The blocks of filters as kernels take them, and who works: this processor, so many threads."""
    from cotswold.kernels.machine.processor import this_processor
    from cotswold.kernels.maps.norms import Matrices

    here = this_processor()
    assert here is not None, "kernels are usable only where the processor is known"
    rows, columns, high, wide, neurons = filters.shape
    blocks = Matrices(rows * columns, high * wide, neurons, name_of(filters.dtype))
    return blocks, here, torch.get_num_threads()


@_norms_op.register_fake
def _(filters: Tensor) -> Tensor:
    shape = (filters.shape[0], filters.shape[1], filters.shape[4])
    return filters.new_empty(shape, dtype=accumulator(filters.dtype))


def _plain_scaled(filters: Tensor, scales: Tensor) -> Tensor:
    return filters * scales[..., None, None, :].to(filters.dtype)


@torch.library.custom_op("cotswold::scaled_filters", mutates_args=())
def _scaled_op(filters: Tensor, scales: Tensor) -> Tensor:
    """Every filter times its number; without derivatives."""
    return _scaled(filters, scales)


@or_torch
def _scaled(filters: Tensor, scales: Tensor) -> Tensor:
    if not usable(filters) or not filters.is_contiguous():
        return _plain_scaled(filters, scales)
    from cotswold.kernels.maps.norms import scaled

    scales, out = scales.contiguous(), torch.empty_like(filters)
    scaled(pointer_of(filters), pointer_of(scales), pointer_of(out), *_workers(filters))
    return out


@_scaled_op.register_fake
def _(filters: Tensor, scales: Tensor) -> Tensor:
    return torch.empty_like(filters)


@_scaled_op.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, int | None], filters: Tensor, scales: Tensor
) -> tuple[Tensor, int]:
    first, second = (
        one if dim is None else one.movedim(dim, 0)
        for one, dim in zip((filters, scales), in_dims, strict=True)
    )
    return _plain_scaled(first, second), 0


class _Norms(torch.autograd.Function):
    @staticmethod
    def forward(filters: Tensor) -> Tensor:
        out: Tensor = _norms_op(filters)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        filters, norms = ctx.saved_tensors
        scale = torch.where(norms == 0, 0, grad / norms)
        # where the gradient is differentiated in turn, torch knows how
        back: Tensor = (_plain_scaled if torch.is_grad_enabled() else _scaled_op)(filters, scale)
        return back

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], filters: Tensor) -> tuple[Tensor, int]:
        filters = filters.movedim(in_dims[0], 0)
        out = apply("filter_norms", _Norms, filters.flatten(0, 1))
        return out.reshape(*filters.shape[:2], *out.shape[1:]), 0


differentiate(_norms_op, _Norms)


def filter_norms(filters: Tensor) -> Tensor:
    """The Euclidean norm of every filter, ``(block_y, block_x, neuron)``; float32 for bfloat16 filters.

    Differentiable any number of times in reverse; at a norm of 0 the gradient is 0. Raises
    ForwardModeError in forward mode.
    """
    return apply("filter_norms", _Norms, filters)


def random_filters(
    layer: BlockLocal,
    seed: int,
    stack: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    blocks: Box | None = None,
) -> Tensor:
    """Gaussian filters of unit norm, ``(block_y, block_x, field_y, field_x * channel, neuron)``.

    The values of a block depend on ``(seed, stack, block_y, block_x)`` and the shape of a block alone, so
    that no grid, device or number of threads changes them. Weights that meet only padding are 0. Of a box
    of ``blocks`` (y, x) alone where one is given.
    """
    (top_row, first), (end_row, end) = (blocks.start, blocks.stop) if blocks else ((0, 0), layer.grid)
    shape, channels = layer.filters_shape[2:], layer.input.channels
    out = torch.empty((end_row - top_row, end - first, *shape), dtype=dtype, device=device)
    for y in range(top_row, end_row):
        top, bottom = layer.y.skipped(y, layer.input.height)
        for x in range(first, end):
            seeds = np.random.SeedSequence((seed, stack, y, x))
            generator = np.random.Generator(np.random.Philox(seeds))
            values = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(torch.float64)
            left, right = layer.x.skipped(x, layer.input.width)
            values[:top] = 0
            values[shape[0] - bottom :] = 0
            values[:, : left * channels] = 0
            values[:, shape[1] - right * channels :] = 0
            out[y - top_row, x - first] = values / torch.linalg.vector_norm(values, dim=(0, 1))
    return out
