"""Differentiable collectives between replicated tensors and parts of ranks.

Knows: sums and maxima over ranks, their gradients. Does not know: maps, modules.

A replicated tensor has its full gradient on every rank, equal on each. So an operation that makes a
replicated tensor from parts passes its gradient on unchanged, and where a replicated tensor meets parts, its
gradient is a sum over ranks. Autograd runs nodes backwards in the order of their creation; every rank creates
nodes that communicate in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cotswold.kernels.operands import accumulation_dtype
from cotswold.mesh.ranks.mesh import Mesh

WEIGHT = "_shared_weight"
"""Attribute of a tensor that is the local part of a replicated parameter: the parameter, in a tuple."""


class _AllReduceForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, mesh: Mesh) -> Tensor:
        ctx.mesh = mesh
        wide = part.to(accumulation_dtype(part.dtype), memory_format=torch.contiguous_format, copy=True)
        return mesh.sum_in_place(wide).to(part.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce_backward(grad, ctx.mesh), None


class _AllReduceBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, mesh: Mesh, weight: tuple[DTensor] | None) -> Tensor:
        ctx.mesh, ctx.weight = mesh, weight
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        sums = ctx.mesh.shared_sums
        if ctx.weight is not None and sums.accepts(ctx.weight[0]):
            sums.add(ctx.weight[0], grad)
            return None, None, None
        return all_reduce_forward(grad, ctx.mesh), None, None


class _ConnectedZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shape: Sequence[int], *sources: Tensor) -> Tensor:
        ctx.save_for_backward(*sources)
        return sources[0].new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sources = ctx.saved_tensors
        return None, *(
            connected_zeros(source.shape, grad, *sources[:at], *sources[at + 1 :])
            for at, source in enumerate(sources)
        )


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, part: Tensor, mesh: Mesh, shape: Sequence[int], places: Sequence[tuple[slice, ...]]
    ) -> Tensor:
        ctx.mesh, ctx.place = mesh, places[mesh.rank]
        whole = part.new_empty(shape)
        # equal pieces, because some backends cannot gather unequal ones
        sizes = [whole[place].numel() for place in places]
        own = mesh.buffers.take(max(sizes), part)
        own[: sizes[mesh.rank]].copy_(part.reshape(-1))
        pieces = mesh.gather(own, [mesh.buffers.take(max(sizes), part) for _ in places])
        for place, piece, size in zip(places, pieces, sizes, strict=True):
            target = whole[place]
            target.copy_(piece[:size].view(target.shape))
        for buffer in (own, *pieces):
            mesh.buffers.release(buffer)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return all_reduce_backward(grad, ctx.mesh)[ctx.place], None, None, None


def all_reduce_forward(part: Tensor, mesh: Mesh) -> Tensor:
    """Sum over ranks, replicated, with the same bits on each."""
    if mesh.size == 1:
        return part
    out: Tensor = _AllReduceForward.apply(part, mesh)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


def all_reduce_backward(whole: Tensor, mesh: Mesh) -> Tensor:
    """Return a replicated tensor for use with parts: its gradient is summed over ranks.

    The gradient of a weight is summed together with those of others (`shared_sums`).
    """
    if mesh.size == 1 or not whole.requires_grad:
        return whole
    weight = getattr(whole, WEIGHT, None)
    out: Tensor = _AllReduceBackward.apply(whole, mesh, weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return out


def connected_zeros(shape: Sequence[int], *sources: Tensor) -> Tensor:
    """Zeros, usually an empty tensor, that depend on ``sources`` and give them gradients of 0.

    A rank without work so joins the messages of the backward pass. The zeros depend on their sources
    as a product does, so that derivatives of any order have the same messages.
    """
    out: Tensor = _ConnectedZeros.apply(tuple(shape), *sources)  # type: ignore[no-untyped-call]  # torch's
    return out


def all_gather(part: Tensor, mesh: Mesh, shape: Sequence[int], places: Sequence[tuple[slice, ...]]) -> Tensor:
    """Gather the ranks' parts into a replicated tensor of ``shape``; part r is at ``places[r]``."""
    if mesh.size == 1:
        return part
    out: Tensor = _AllGather.apply(part, mesh, shape, places)  # type: ignore[no-untyped-call]  # torch's
    return out


def all_reduce_max(values: Tensor, mesh: Mesh) -> Tensor:
    """Maximum over ranks, without a gradient; NaN if any rank has NaN, as in torch.amax."""
    if mesh.size == 1:
        return values.detach()
    if values.dtype.is_floating_point:
        # Floats are compared as integers in the same order, because some backends lose a NaN among floats.
        wide = values.detach().to(accumulation_dtype(values.dtype), memory_format=torch.contiguous_format)
        return _from_order(mesh.largest_in_place(_to_order(wide)), wide.dtype).to(values.dtype)
    long = values.detach().to(torch.int64, memory_format=torch.contiguous_format, copy=True)
    return mesh.largest_in_place(long).to(values.dtype)


_AS_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def _to_order(values: Tensor) -> Tensor:
    """Integers that have the order of the floats, with NaN above all."""
    bits = torch.where(values.isnan(), torch.full_like(values, torch.nan), values).view(
        _AS_WHOLE[values.dtype]
    )
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def _from_order(bits: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).view(dtype)
