"""Initial values and norms of filters.

Knows: the layout ``(block_y, block_x, field_y, field_x * channel, neuron)``. Does not know: products, steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Box
from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.operands import accumulation_dtype, name_of, pointer_of
from cotswold.ops.reverse_mode import apply, differentiate, refuse_forward_mode
from cotswold.ops.updates import UpdateRule, apply_pushes

_LOCAL_DIMS = 5

if TYPE_CHECKING:
    from cotswold.kernels.machine.processor import Processor
    from cotswold.kernels.maps.norms import Matrices


def scale_to_norm_1(filters: Tensor) -> None:
    """Divide every filter by its norm, in place; filters of zeros or with a norm not finite stay unchanged.

    Args:
        filters: ``(block_y, block_x, field_y, field_x * channel, neuron)``.

    Raises:
        ValueError: Another number of dimensions.
    """
    if filters.ndim != _LOCAL_DIMS:
        raise ValueError(
            f"filters must have {_LOCAL_DIMS} dimensions, got {tuple(filters.shape)}; "
            "for rows use scale_rows_to_norm_1"
        )
    norms = filter_norms(filters)
    norms[(norms == 0) | ~norms.isfinite()] = 1
    filters.div_(norms[:, :, None, None])


def scale_rows_to_norm_1(rows: Tensor) -> None:
    """Divide every row by its norm, in place; rows of zeros or with a norm not finite stay unchanged.

    The result has the same bits as a server's update with unit-norm rows (`ops.updates`).

    Args:
        rows: Weights of a fully connected layer or a convolution, ``(row, ...)``, contiguous.

    >>> rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> scale_rows_to_norm_1(rows)
    >>> rows
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    flat = rows.view(-1)
    if flat.numel() == 0:
        return
    apply_pushes(UpdateRule("add", columns=flat.numel() // max(1, len(rows)), unit_norm=True), flat, None, [])


def _plain_norms(filters: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(filters, dim=(2, 3), dtype=accumulation_dtype(filters.dtype))
    return norms


def _in_range(filters: Tensor, norms: Tensor) -> Tensor:
    """Recompute norms, in place, from scaled filters where a sum of squares under- or overflowed."""
    limits = torch.finfo(norms.dtype)
    lost = ~((norms > (limits.tiny / limits.eps) ** 0.5) & norms.isfinite())
    if not lost.any():
        return norms
    chosen = filters.movedim(4, 2)[lost].to(norms.dtype)  # copy only these; they include filters of zeros
    largest = chosen.abs().amax((1, 2), keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    norms[lost] = (torch.linalg.vector_norm(chosen / scale, dim=(1, 2), keepdim=True) * scale).flatten()
    return norms


@torch.library.custom_op("cotswold::filter_norms", mutates_args=())
def _norms_op(filters: Tensor) -> Tensor:
    refuse_forward_mode("filter_norms", filters)
    return _norms(filters)


@fallback_to_torch
def _norms(filters: Tensor) -> Tensor:
    if filters.numel() == 0 or not has_cpu_kernel(filters):
        return _in_range(filters, _plain_norms(filters)) if filters.numel() else _plain_norms(filters)
    from cotswold.kernels.maps.norms import norms

    filters = filters.contiguous()
    out = filters.new_empty((*filters.shape[:2], filters.shape[4]))
    norms(pointer_of(filters), pointer_of(out), *_workers(filters))
    return _in_range(filters, out)


def _workers(filters: Tensor) -> tuple[Matrices, Processor, int]:
    """Blocks of filters in the kernels' form, the processor and the number of threads."""
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
    return filters.new_empty(shape, dtype=accumulation_dtype(filters.dtype))


def _plain_scaled(filters: Tensor, scales: Tensor) -> Tensor:
    return filters * scales[..., None, None, :].to(filters.dtype)


@torch.library.custom_op("cotswold::scaled_filters", mutates_args=())
def _scaled_op(filters: Tensor, scales: Tensor) -> Tensor:
    """Multiply every filter by its scale; not differentiable."""
    return _scaled(filters, scales)


@fallback_to_torch
def _scaled(filters: Tensor, scales: Tensor) -> Tensor:
    if not has_cpu_kernel(filters) or not filters.is_contiguous():
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
        # torch differentiates the plain form further
        back: Tensor = (_plain_scaled if torch.is_grad_enabled() else _scaled_op)(filters, scale)
        return back

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], filters: Tensor) -> tuple[Tensor, int]:
        filters = filters.movedim(in_dims[0], 0)
        out = apply("filter_norms", _Norms, filters.flatten(0, 1))
        return out.reshape(*filters.shape[:2], *out.shape[1:]), 0


differentiate(_norms_op, _Norms)


def filter_norms(filters: Tensor) -> Tensor:
    """Return the Euclidean norm of every filter; its gradient is 0 at a norm of 0.

    Differentiable any number of times in reverse mode.

    Args:
        filters: ``(block_y, block_x, field_y, field_x * channel, neuron)``.

    Returns:
        ``(block_y, block_x, neuron)``, in float32 for bfloat16 and float16 filters, else in the filters'
        dtype.

    Raises:
        ForwardModeError: Forward-mode differentiation.
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
    """Return Gaussian filters of unit norm, ``(block_y, block_x, field_y, field_x * channel, neuron)``.

    The values of a block depend only on ``(seed, stack, block_y, block_x)`` and the shape of a block, not on
    grid, device or number of threads. Weights that read only padding are 0.

    Args:
        layer: Geometry of the layer.
        seed: Seed of the network.
        stack: Index of the stack in the network.
        dtype: Dtype of the filters.
        device: Device of the filters.
        blocks: Box ``(y, x)`` of blocks to return [all].
    """
    (top_row, first), (end_row, end) = (blocks.start, blocks.stop) if blocks else ((0, 0), layer.grid)
    shape, channels = layer.filters_shape[2:], layer.input.channels
    out = torch.empty((end_row - top_row, end - first, *shape), dtype=dtype, device=device)
    for y in range(top_row, end_row):
        top, bottom = layer.y.padding_read(y, layer.input.height)
        for x in range(first, end):
            seeds = np.random.SeedSequence((seed, stack, y, x))
            generator = np.random.Generator(np.random.Philox(seeds))
            values = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)).to(torch.float64)
            left, right = layer.x.padding_read(x, layer.input.width)
            values[:top] = 0
            values[shape[0] - bottom :] = 0
            values[:, : left * channels] = 0
            values[:, shape[1] - right * channels :] = 0
            out[y - top_row, x - first] = values / torch.linalg.vector_norm(values, dim=(0, 1))
    return out
